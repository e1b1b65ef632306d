"""Earlier tool calls in a conversation, from the form that clients send to the one that templates read."""

import json
from typing import Any, Final

from octavo.core.errors import shown
from octavo.server.parsing.json_text import is_json_object
from octavo.server.parsing.tools import NAME, NAME_RULE
from octavo.text.messages import Message, check_messages, refuse

MAX_CALLS: Final = 128  # of one message
MAX_ID_CHARS: Final = 256


def messages_for_template(messages: object) -> list[Message]:
    """Check a conversation as ``check_messages`` does, and the tool calls in it.

    Clients of OpenAI's API send the arguments of a call as JSON text. Templates expect the object that it
    stands for: most write it out with ``tojson``, which would quote a text once more. An empty text stands
    for no arguments.

    Raises:
        InvalidRequest: names the message and what is wrong with it.
    """
    plain = check_messages(messages)
    for i, message in enumerate(plain):
        where = f"messages[{i}]"
        calls = message.get("tool_calls", [])
        if not isinstance(calls, list):
            refuse(f"{where}.tool_calls", f"expected a list, got {type(calls).__name__}")
        if calls and message["role"] != "assistant":
            refuse(f"{where}.tool_calls", f"only the assistant makes calls, not {message['role']!r}")
        if len(calls) > MAX_CALLS:
            refuse(f"{where}.tool_calls", f"{len(calls)} calls, at most {MAX_CALLS} are allowed")
        if calls:
            message["tool_calls"] = [
                _check_call(call, f"{where}.tool_calls[{j}]") for j, call in enumerate(calls)
            ]
        if "tool_call_id" in message:
            _check_id(message["tool_call_id"], f"{where}.tool_call_id")
    return plain


def _check_call(call: object, where: str) -> dict[str, Any]:
    kind = call.get("type", "function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or kind != "function":
        refuse(where, f"must be {{'type': 'function', 'function': {{...}}}}, not of type {shown(kind)}")
    if call.get("id") is not None:
        _check_id(call["id"], f"{where}.id")
    function = call.get("function")
    if not isinstance(function, dict):
        refuse(f"{where}.function", f"must be an object, not {shown(function)}")
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        refuse(f"{where}.function.name", f"must be {NAME_RULE}, not {shown(name)}")
    arguments = _check_arguments(function.get("arguments"), f"{where}.function.arguments")
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _check_id(value: object, where: str) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS:
        refuse(where, f"must be a text of 1 to {MAX_ID_CHARS} characters, not {shown(value)}")


def _check_arguments(arguments: object, where: str) -> dict[str, Any]:
    if isinstance(arguments, dict):
        return arguments
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str) or not is_json_object(arguments):
        refuse(where, f"must be the JSON text of an object, not {shown(arguments)}")
    try:
        value: dict[str, Any] = json.loads(arguments)
    except ValueError as error:  # a number of thousands of digits
        refuse(where, str(error))
    return value
