"""Options that go together, written down once: a command takes them as a dataclass.

Typer reads options from a command's signature. ``grouped`` shows it one in which each dataclass stands for as
many options as it has fields, and hands the command the dataclass.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command for Typer, some of whose parameters are groups of options.

    A group is a dataclass whose fields are annotated as options and have defaults. A command that wants other
    defaults gives an instance with them::

        @grouped
        def serve(*, engine: EngineOptions, delivery: Delivery = IN_JSON) -> None: ...

    What a group checks when it is made is checked before the command begins.

    Raises:
        TypeError: a field of a group has no default.
        ValueError: two options have the same name.
    """
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {p.name: p.annotation for p in parameters if is_dataclass(p.annotation)}
    flat = [option for p in parameters for option in _options_of(p)]

    def run(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = {option.name: option.annotation for option in flat}
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


def _options_of(parameter: Parameter) -> Iterator[Parameter]:
    """A parameter as it is, or those that its group stands for."""
    if not is_dataclass(parameter.annotation):
        yield parameter
        return
    group: Any = parameter.annotation
    defaults = group() if parameter.default is Parameter.empty else parameter.default
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = getattr(defaults, field.name)
        yield parameter.replace(name=field.name, annotation=hints[field.name], default=default)
