"""Options that go together, written down once: a command takes them as a dataclass.

Typer reads options from a command's signature. ``grouped`` shows it one in which each dataclass stands for
the options among its fields, and hands the command the dataclass.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import Parameter
from typing import Annotated, Any, get_origin, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command for Typer, some of whose parameters are groups of options.

    A group is a dataclass whose fields have defaults; those that are ``Annotated`` are options. A command
    that wants other defaults gives an instance with them::

        @grouped
        def serve(*, engine: EngineOptions, delivery: Delivery = IN_JSON) -> None: ...

    What a group checks when it is made is checked before the command begins.

    Raises:
        TypeError: a field of a group has no default.
        ValueError: two options have the same name.
    """
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups = {p.name: _Group.of(p) for p in parameters if is_dataclass(p.annotation)}
    flat: list[Parameter] = []
    for parameter in parameters:
        group = groups.get(parameter.name)
        flat += [parameter] if group is None else group.options

    def run(**given: Any) -> None:
        made = {name: group.take(given) for name, group in groups.items()}
        command(**given, **made)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__annotations__ = {option.name: option.annotation for option in flat}
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True, slots=True)
class _Group:
    """A parameter that stands for options, and the values where they are not given."""

    defaults: Any
    options: list[Parameter]

    @staticmethod
    def of(parameter: Parameter) -> "_Group":
        """Of a parameter whose type is a dataclass."""
        kind: Any = parameter.annotation
        defaults = kind() if parameter.default is Parameter.empty else parameter.default
        hints = get_type_hints(kind, include_extras=True)
        options = [
            parameter.replace(
                name=field.name, annotation=hints[field.name], default=getattr(defaults, field.name)
            )
            for field in fields(kind)
            if get_origin(hints[field.name]) is Annotated
        ]
        return _Group(defaults, options)

    def take(self, given: dict[str, Any]) -> Any:
        """The group, of values that it takes away from ``given``."""
        return replace(self.defaults, **{option.name: given.pop(option.name) for option in self.options})
