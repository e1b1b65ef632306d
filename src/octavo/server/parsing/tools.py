"""The functions that a client offers to the model, checked: ``tools`` and ``tool_choice``."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from octavo.core.errors import shown
from octavo.core.structured import MAX_SCHEMA_CHARS
from octavo.text.messages import plain_value, refuse

MAX_TOOLS: Final = 128
MAX_TOOLS_CHARS: Final = 512 * 1024  # of all definitions together, as JSON

NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME_RULE: Final = "1 to 64 letters, digits, underscores and hyphens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: of the function.
        parameters: the JSON schema of its arguments, an object; ``{}`` says nothing about them.
        strict: whether the model must keep to the schema.
        definition: all that the client said, as the chat template sees it.
    """

    name: str
    parameters: dict[str, Any]
    strict: bool
    definition: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """What the model may or must call.

    Attributes:
        mode: no call at all, as the model likes, or at least one.
        names: of the functions that it may call, in the order of ``tools``; empty for "none".
        is_named: the client named one function, which is called once.
    """

    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...] = ()
    is_named: bool = False


def check_tools(tools: object) -> tuple[Tool, ...]:
    """Check the functions of a request; None and an empty list are no functions.

    Raises:
        InvalidRequest: names the tool and what is wrong with it.
    """
    if tools is None:
        return ()
    if not isinstance(tools, list | tuple):
        refuse("tools", f"expected a list of functions, got {type(tools).__name__}")
    if len(tools) > MAX_TOOLS:
        refuse("tools", f"{len(tools)} functions, at most {MAX_TOOLS} are allowed")
    checked = tuple(_check_tool(tool, f"tools[{i}]") for i, tool in enumerate(tools))
    first: dict[str, int] = {}
    for i, tool in enumerate(checked):
        if first.setdefault(tool.name, i) != i:
            refuse(f"tools[{i}].function.name", f"{tool.name!r} is the name of tools[{first[tool.name]}] too")
    num_chars = sum(len(_json_text(tool.definition, f"tools[{i}]")) for i, tool in enumerate(checked))
    if num_chars > MAX_TOOLS_CHARS:
        refuse("tools", f"{num_chars} characters of JSON in all, at most {MAX_TOOLS_CHARS} are allowed")
    return checked


def check_tool_choice(choice: object, tools: Sequence[Tool]) -> ToolChoice:
    """Check what a request says about calls: "none", "auto", "required", one function, or some of them.

    Args:
        choice: as the client sent it; None is "auto" where there are functions.
        tools: of the same request.

    Raises:
        InvalidRequest: another form, a function that is not among ``tools``, or none are there to be called.
    """
    names = tuple(tool.name for tool in tools)
    if choice is None or choice == "auto":
        return ToolChoice(mode="auto", names=names) if names else ToolChoice(mode="none")
    if choice == "none":
        return ToolChoice(mode="none")
    if choice == "required":
        if not names:
            refuse("tool_choice", "'required' needs tools to choose from")
        return ToolChoice(mode="required", names=names)
    found = _check_choice_object(choice, names)
    if found is None:
        refuse(
            "tool_choice",
            "must be 'none', 'auto', 'required', {'type': 'function', 'function': {'name': ...}} or"
            " {'type': 'allowed_tools', 'allowed_tools': {'mode': ..., 'tools': [...]}}, not"
            f" {shown(choice)}",
        )
    return found


def _check_choice_object(choice: object, names: Sequence[str]) -> ToolChoice | None:
    match choice:
        case {"type": "function", "function": {"name": name}}:
            return ToolChoice(
                mode="required", names=(_known(name, names, "tool_choice.function.name"),), is_named=True
            )
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": list(entries)},
        } if entries:
            wanted = {
                _known(_function_name(entry), names, f"tool_choice.allowed_tools.tools[{i}]")
                for i, entry in enumerate(entries)
            }
            return ToolChoice(mode=mode, names=tuple(name for name in names if name in wanted))
    return None


def _function_name(entry: object) -> object:
    match entry:
        case {"type": "function", "function": {"name": name}}:
            return name
    return None


def _known(name: object, names: Sequence[str], where: str) -> str:
    if not isinstance(name, str) or name not in names:
        refuse(where, f"{shown(name)} is not among the tools, which are: {', '.join(names) or 'none'}")
    return name


def _check_tool(tool: object, where: str) -> Tool:
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or kind != "function":
        refuse(where, f"must be {{'type': 'function', 'function': {{...}}}}, not of type {shown(kind)}")
    function = tool.get("function")
    if not isinstance(function, Mapping):
        refuse(f"{where}.function", f"must be an object, not {shown(function)}")
    function = {k: v for k, v in plain_value(function, f"{where}.function").items() if v is not None}
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        refuse(f"{where}.function.name", f"must be {NAME_RULE}, not {shown(name)}")
    if not isinstance(function.get("description", ""), str):
        refuse(f"{where}.function.description", f"must be a text, not {shown(function['description'])}")
    strict = function.get("strict", False)
    if not isinstance(strict, bool):
        refuse(f"{where}.function.strict", f"must be true or false, not {shown(strict)}")
    parameters = _check_parameters(function.get("parameters", {}), f"{where}.function.parameters")
    definition = {**plain_value(tool, where), "function": function}
    return Tool(name=name, parameters=parameters, strict=strict, definition=definition)


def _check_parameters(schema: object, where: str) -> dict[str, Any]:
    if not isinstance(schema, dict):
        refuse(where, f"must be a JSON schema, an object, not {shown(schema)}")
    if schema.get("type", "object") != "object":
        refuse(f"{where}.type", f"must be 'object', not {shown(schema['type'])}")
    if not isinstance(schema.get("properties", {}), dict):
        refuse(f"{where}.properties", f"must be an object, not {shown(schema['properties'])}")
    if (num_chars := len(_json_text(schema, where))) > MAX_SCHEMA_CHARS:
        refuse(where, f"{num_chars} characters of JSON, at most {MAX_SCHEMA_CHARS} are allowed")
    return schema


def _json_text(value: object, where: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except ValueError as error:  # not a number, a number of thousands of digits, or a lone surrogate
        refuse(where, f"it is not JSON: {error}")
    return text
