import math

import pytest

from octavo.core.errors import InvalidRequest
from octavo.core.structured import (
    MAX_CHOICE_CHARS,
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_REGEX_CHARS,
    MAX_SCHEMA_CHARS,
    StructuredOutput,
)


def test_each_kind_takes_one_form():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    text = '{"type":"object","properties":{"b":{},"a":{}}}'
    assert StructuredOutput(json_schema=schema).json_schema == text
    assert (
        StructuredOutput(json_schema=' {"type": "object",\n"properties": {"b": {}, "a": {}}}').json_schema
        == text
    )
    assert StructuredOutput(json_schema=True) == StructuredOutput(json_schema={})
    assert StructuredOutput(json_object=True) == StructuredOutput(json_schema={"type": "object"})
    assert StructuredOutput(choice=["a", "b", "a"]).choice == ("a", "b")
    assert hash(StructuredOutput(choice=["a"])) == hash(StructuredOutput(choice=("a",)))
    kinds = [
        StructuredOutput(json_object=True).kind,
        StructuredOutput(regex="a").kind,
        StructuredOutput(choice=["a"]).kind,
        StructuredOutput(grammar='start: "a"').kind,
    ]
    assert kinds == ["json_schema", "regex", "choice", "grammar"]


def nested(depth: int) -> object:
    value: object = {}
    for _ in range(depth):
        value = {"not": value}
    return value


circular: dict = {}
circular["not"] = circular


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "structured_output"),
        ({"regex": "a", "choice": ["a"]}, "structured_output"),
        ({"json_object": True, "json_schema": {}}, "structured_output"),
        ({"json_object": 1}, "json_object"),
        ({"json_schema": False}, "json_schema"),
        ({"json_schema": 3}, "json_schema"),
        ({"json_schema": [1]}, "json_schema"),
        ({"json_schema": "[1]"}, "json_schema"),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": ""}, "json_schema"),
        ({"json_schema": {"const": {1, 2}}}, "json_schema"),
        ({"json_schema": {"const": math.nan}}, "json_schema"),
        ({"json_schema": {"const": "\ud800"}}, "json_schema"),
        ({"json_schema": circular}, "json_schema"),
        ({"json_schema": nested(100_000)}, "json_schema"),
        ({"json_schema": "[" * MAX_SCHEMA_CHARS}, "json_schema"),
        ({"json_schema": {"const": "x" * MAX_SCHEMA_CHARS}}, "json_schema"),
        ({"regex": ""}, "regex"),
        ({"regex": b"a"}, "regex"),
        ({"regex": "\udfff"}, "regex"),
        ({"regex": "x" * (MAX_REGEX_CHARS + 1)}, "regex"),
        ({"grammar": 0}, "grammar"),
        ({"grammar": "x" * (MAX_GRAMMAR_CHARS + 1)}, "grammar"),
        ({"choice": []}, "choice"),
        ({"choice": "ab"}, "choice"),
        ({"choice": ["a", ""]}, "choice"),
        ({"choice": ["a", 1]}, "choice"),
        ({"choice": [str(i) for i in range(MAX_CHOICES + 1)]}, "choice"),
        ({"choice": ["a", "b" * MAX_CHOICE_CHARS]}, "choice"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields, param):
    with pytest.raises(InvalidRequest) as refused:
        StructuredOutput(**fields)
    assert refused.value.param == param
    assert len(str(refused.value)) < 300


def test_limits_are_reachable():
    assert StructuredOutput(regex="x" * MAX_REGEX_CHARS).kind == "regex"
    assert len(StructuredOutput(choice=[f"{i:032}" for i in range(MAX_CHOICES)]).choice) == MAX_CHOICES
