"""Messages of a chat in a file, in OpenAI's form: checked, and sent as they are."""

from typing import Any, Final

from octavo.bench.workloads.lines import Fields
from octavo.core.errors import InvalidRequest, shown
from octavo.text.messages import Message, check_messages

# Content may be parts of type "text". Servers answer with the last two, which files then hold.
_KEYS: Final = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content")


def read_messages(fields: Fields, value: Any) -> tuple[Message, ...]:
    """The messages of a line.

    Raises:
        MalformedLine: one is not as OpenAI's API has it, or has another key, which a mistyped one would be.
    """
    if not isinstance(value, list) or not value:
        raise fields.wrong(f"messages={shown(value)}: must be a list of messages, not empty")
    each = [fields.within(f"messages[{number}]", message) for number, message in enumerate(value)]
    for one in each:
        one.only(*_KEYS)
    try:
        check_messages(value)
    except InvalidRequest as error:
        raise fields.wrong(str(error)) from None
    for one, message in zip(each, value, strict=True):
        _check(one, message)
    return tuple(value)


def _check(fields: Fields, message: Message) -> None:
    """What ``check_messages`` leaves to templates."""
    for name in ("name", "tool_call_id", "refusal", "reasoning_content"):
        fields.text_or_none(name)
    for name in message:
        fields.encodable(name)
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(map(_is_call, calls))):
        raise fields.wrong(
            f"tool_calls={shown(calls)}: must be a list of calls such as "
            '{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}'
        )


def _is_call(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
