"""Chat messages as clients send them: checked, and made plain for templates."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from octavo.core.errors import InvalidRequest

Message = dict[str, Any]

MAX_CHARS = 1 << 24
MAX_DEPTH = 64

_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def check_messages(messages: object) -> list[Message]:
    """Check a conversation and copy it into plain dicts, lists, texts and numbers.

    A message has a ``role`` and a ``content``: a text or a list of parts ``{"type": "text", "text": ...}``.
    The content may be missing or None where ``tool_calls`` stand in for it. Other keys are passed on to the
    template; those whose value is None are dropped, because templates take a missing key for None but not
    the reverse. Which roles may follow which is for the template to say.

    Raises:
        InvalidRequest: names the message and what is wrong with it.
    """
    if not isinstance(messages, list | tuple) or not messages:
        refuse("messages", "expected a non-empty list of messages")
    plain = [_check_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if (num_chars := count_chars(plain)) > MAX_CHARS:
        refuse("messages", f"{num_chars} characters in all, at most {MAX_CHARS} are allowed")
    return plain


def flatten_content(messages: Sequence[Message]) -> list[Message]:
    """Turn lists of text parts into one text each, the parts on lines of their own."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def plain_value(value: object, where: str, depth: int = 0) -> Any:
    """Copy a value made of what JSON has.

    Raises:
        InvalidRequest: something that JSON does not have, or nested too deep.
    """
    if depth > MAX_DEPTH:
        refuse(where, f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, Mapping):
        return {str(k): plain_value(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if not (value is None or isinstance(value, str | bool | int | float)):
        refuse(where, f"cannot be a {type(value).__name__}")
    return value


def count_chars(value: object) -> int:
    """Characters of all texts in a plain value, at least 1 for everything else in it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(k) + count_chars(v) for k, v in value.items())
    return sum(map(count_chars, value)) if isinstance(value, list) else 1


def refuse(where: str, what: str) -> NoReturn:
    """Raise InvalidRequest about one part of the request."""
    raise InvalidRequest(f"{where}: {what}", param=where.partition("[")[0].partition(".")[0])


def _check_message(message: object, where: str) -> Message:
    if not isinstance(message, Mapping):
        refuse(where, f"expected an object with role and content, got {type(message).__name__}")
    plain = {key: value for key, value in plain_value(message, where).items() if value is not None}
    role = plain.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        refuse(f"{where}.role", f"expected a name such as 'user', got {role!r}")
    content = plain.get("content")
    if isinstance(content, list):
        for i, part in enumerate(content):
            _check_part(part, f"{where}.content[{i}]")
    elif content is None:
        if not plain.get("tool_calls"):
            refuse(f"{where}.content", "missing; only a message with tool_calls may do without")
    elif not isinstance(content, str):
        refuse(f"{where}.content", f"expected a text or a list of parts, got {type(content).__name__}")
    return plain


def _check_part(part: object, where: str) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        refuse(where, f"expected {{'type': 'text', 'text': ...}}, got type {kind!r}; only text is supported")
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        refuse(f"{where}.text", "expected a text")
