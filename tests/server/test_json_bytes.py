"""JSON as answers carry it."""

import json

import pytest

from octavo.server.errors import json_bytes


@pytest.mark.parametrize(
    "value",
    [
        {"text": "héllo 世界 🎉", "logprobs": None, "list": [1, 2.5, -1e-7, True]},
        {"text": 'a"b\\c\n\u2028\x00\x7f', "empty": {}, "nested": [[], [{}]]},
        "half a pair: \ud83d, and the other: \udc00",
        {"\udfff": "\ud800"},
    ],
)
def test_json_is_utf8_and_says_what_was_given(value: object) -> None:
    found = json_bytes(value)
    assert json.loads(found.decode("utf-8")) == value
    assert b"\n" not in found  # an event is one line


def test_json_is_not_spaced_out() -> None:
    assert json_bytes({"a": [1, "é"]}) == '{"a":[1,"é"]}'.encode()
