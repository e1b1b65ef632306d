"""``--config FILE``: options from a TOML file. What the command line says wins.

Keys at the top are for every command that has such an option; those in a table, such as ``[serve]`` or
``[bench.step]``, for that command alone, or for those of its group. A key is an option's long name, with "-"
or "_" in it.
"""

import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import typer

from octavo.core.errors import InvalidConfig, shown

_NOT_IN_FILES: Final = frozenset({"help", "config"})
# Texts that are often plain numbers, which TOML writes without quotes.
_TEXT_OR_NUMBER: Final = frozenset(
    {"block_size", "kv_memory", "memory", "max_body_size", "input_len", "output_len", "turns", "prompt_lens"}
    | {"context_len", "concurrency", "shared_prefix", "max_step_tokens"}  # a sweep's lists of one value
    | {"block_sizes", "step_budgets", "chunk_budgets"}  # those of tune
)
_KIND_NAMES: Final = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}


class _Option(NamedTuple):
    """An option as a file may give it: the parameter it sets, and the type of its value, or of each."""

    parameter: str
    kind: type
    is_list: bool


def load(context: typer.Context, file: Path | None) -> Path | None:
    """The callback of ``--config``: makes what the file says the defaults of the command's options.

    All of the file is checked, that for other commands too: a misspelt key is an error wherever it stands.

    Raises:
        InvalidConfig: the file cannot be read, or has an unknown key or a value of a wrong type.
    """
    if file is None or context.resilient_parsing:
        return file
    table = _read(file)
    root = context.find_root().command
    _check(file, table, root, "")
    options = _options_of(context.command)
    found: dict[str, Any] = {}
    for name in [None, *_path_of(context)]:
        table = table if name is None else table.get(name, {})
        for key, value in table.items():
            if not isinstance(value, dict) and (option := options.get(_normal(key))):
                found[option.parameter] = _convert(option, value)
    context.default_map = found
    return file


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{file}: not TOML: {error}") from error


def _check(file: Path, table: dict[str, Any], command: Any, where: str) -> None:
    """Refuse what no command knows, or what does not suit every command that it is for."""
    place = f"in [{where}]" if where else "at the top"
    commands = _commands_of(command)
    known: dict[str, list[_Option]] = {}
    for leaf in _leaves(command):
        for key, option in _options_of(leaf).items():
            known.setdefault(key, []).append(option)
    seen: set[str] = set()
    for key, value in table.items():
        if isinstance(value, dict):
            if key not in commands:
                names = f"; known are {', '.join(commands)}" if commands else ""
                raise InvalidConfig(f"{file}: unknown table {shown(key)} {place}{names}")
            _check(file, value, commands[key], f"{where}.{key}" if where else key)
            continue
        name = _normal(key)
        if name not in known:
            raise InvalidConfig(f"{file}: unknown key {shown(key)} {place}; known are {', '.join(known)}")
        if name in seen:
            raise InvalidConfig(f"{file}: {shown(key)} is given twice {place}")
        seen.add(name)
        for option in known[name]:
            try:
                _convert(option, value)
            except TypeError as error:
                raise InvalidConfig(f"{file}: key {shown(key)} {place}: must be {error}") from None


def _convert(option: _Option, value: Any) -> Any:
    """The value as the command line would give it. A single value will do for a list.

    Raises:
        TypeError: it is none; says what is wanted.
    """
    if option.is_list:
        values = value if isinstance(value, list) else [value]
        if all(_suits(option, each) for each in values):
            return values
        raise TypeError(f"a list of which each is {_KIND_NAMES[option.kind]}")
    if not _suits(option, value):
        raise TypeError(_KIND_NAMES[option.kind])
    return str(value) if option.kind is str else option.kind(value)


def _suits(option: _Option, value: Any) -> bool:
    if isinstance(value, bool) or option.kind is bool:
        return isinstance(value, bool) and option.kind is bool
    if option.kind is float or (option.kind is str and option.parameter in _TEXT_OR_NUMBER):
        return isinstance(value, (int, option.kind))
    return isinstance(value, option.kind)


def _commands_of(command: Any) -> dict[str, Any]:
    """The commands of a group, by name; none of a command."""
    return getattr(command, "commands", {})


def _leaves(command: Any) -> Iterator[Any]:
    commands = _commands_of(command)
    if not commands:
        yield command
    for each in commands.values():
        yield from _leaves(each)


def _options_of(command: Any) -> dict[str, _Option]:
    """The options of a command by each of their long names, normalised."""
    hints = get_type_hints(inspect.unwrap(command.callback))
    options: dict[str, _Option] = {}
    for parameter in command.params:
        if parameter.param_type_name != "option" or parameter.name not in hints:
            continue
        option = _Option(parameter.name, *_kind_of(hints[parameter.name]))
        for name in parameter.opts:
            if name.startswith("--") and (key := _normal(name[2:])) not in _NOT_IN_FILES:
                options[key] = option
    return options


def _kind_of(hint: Any) -> tuple[type, bool]:
    """The type of an option's value, and whether there are several of it, from the annotation."""
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is list:
        return _kind_of(get_args(hint)[0])[0], True
    return (str if issubclass(hint, Path) else hint), False


def _path_of(context: Any) -> list[str]:
    """Names of the group, if any, and of the command that runs."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return names


def _normal(key: str) -> str:
    return key.replace("-", "_")
