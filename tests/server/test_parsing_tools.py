"""Tools, tool choices and earlier tool calls as clients send them."""

import json

import pytest
from parsing_case import qwen3_directory

from octavo.core.errors import InvalidRequest
from octavo.core.structured import MAX_SCHEMA_CHARS
from octavo.server.parsing.tool_messages import MAX_CALLS, messages_for_template
from octavo.server.parsing.tools import MAX_TOOLS, MAX_TOOLS_CHARS, ToolChoice, check_tool_choice, check_tools
from octavo.text.chat_template import ChatTemplate

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name="f", **fields):
    return {"type": "function", "function": {"name": name, **fields}}


def named(name):
    return {"type": "function", "function": {"name": name}}


def nested(depth):
    value: dict = {}
    for _ in range(depth):
        value = {"properties": value}
    return value


def test_tools_are_read():
    first, second = check_tools(
        [
            function("get-it_2", description="Gets.", parameters=SCHEMA, strict=True),
            function(description=None),
        ]
    )
    assert (first.name, first.parameters, first.strict) == ("get-it_2", SCHEMA, True)
    assert first.definition["function"]["description"] == "Gets."
    assert (second.name, second.parameters, second.strict) == ("f", {}, False)
    assert second.definition == function()
    assert check_tools(None) == check_tools([]) == ()


@pytest.mark.parametrize(
    ("tools", "says"),
    [
        ("f", "tools: expected a list"),
        (
            [function(f"f{i}") for i in range(MAX_TOOLS + 1)],
            f"{MAX_TOOLS + 1} functions, at most {MAX_TOOLS}",
        ),
        ([1], "tools[0]: must be"),
        ([{"type": "custom", "custom": {"name": "f"}}], "tools[0]: must be"),
        ([{"type": "function"}], "tools[0].function: must be an object"),
        ([function(""), 1], "tools[0].function.name: must be"),
        ([function("a b")], "tools[0].function.name: must be"),
        ([function("é")], "tools[0].function.name: must be"),
        ([function("a" * 65)], "tools[0].function.name: must be"),
        ([function("f\n")], "tools[0].function.name: must be"),
        ([function(7)], "tools[0].function.name: must be"),
        ([function("g"), function(), function()], "tools[2].function.name: 'f' is the name of tools[1] too"),
        ([function(description=1)], "tools[0].function.description"),
        ([function(strict="yes")], "tools[0].function.strict"),
        ([function(parameters="{}")], "tools[0].function.parameters: must be a JSON schema"),
        ([function(parameters={"type": "string"})], "tools[0].function.parameters.type: must be 'object'"),
        ([function(parameters={"type": ["object", "null"]})], "tools[0].function.parameters.type"),
        ([function(parameters={"properties": []})], "tools[0].function.parameters.properties"),
        ([function(parameters={"default": float("nan")})], "tools[0].function.parameters: it is not JSON"),
        ([function(parameters={"title": "\ud800"})], "tools[0].function.parameters: it is not JSON"),
        ([function(description="\ud800")], "tools[0]: it is not JSON"),
        ([function(parameters=nested(100))], "nested more than"),
        ([function(parameters={"title": "x" * MAX_SCHEMA_CHARS})], f"at most {MAX_SCHEMA_CHARS} are allowed"),
        ([function(description="x" * MAX_TOOLS_CHARS)], f"at most {MAX_TOOLS_CHARS} are allowed"),
    ],
)
def test_tools_are_refused(tools, says):
    with pytest.raises(InvalidRequest) as caught:
        check_tools(tools)
    assert says in str(caught.value)
    assert caught.value.param == "tools"


TOOLS = check_tools([function("f"), function("g"), function("h")])


def allowed(mode, *names):
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice(mode="auto", names=("f", "g", "h"))),
        ("auto", ToolChoice(mode="auto", names=("f", "g", "h"))),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required", names=("f", "g", "h"))),
        (named("g"), ToolChoice(mode="required", names=("g",), is_named=True)),
        (allowed("auto", "h", "f"), ToolChoice(mode="auto", names=("f", "h"))),
        (allowed("required", "h"), ToolChoice(mode="required", names=("h",))),
    ],
)
def test_choices(choice, expected):
    assert check_tool_choice(choice, TOOLS) == expected


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (named("x"), "'x' is not among the tools, which are: f, g, h"),
        (named(["f"]), "['f'] is not among the tools"),
        (allowed("auto", "f", "x"), "tool_choice.allowed_tools.tools[1]: 'x' is not among"),
        (allowed("none", "f"), "must be 'none', 'auto'"),
        (allowed("auto"), "must be 'none', 'auto'"),
        ("sometimes", "not 'sometimes'"),
        ({"type": "function", "name": "f"}, "must be 'none', 'auto'"),
        (7, "not 7"),
    ],
)
def test_choices_are_refused(choice, says):
    with pytest.raises(InvalidRequest) as caught:
        check_tool_choice(choice, TOOLS)
    assert says in str(caught.value)
    assert caught.value.param == "tool_choice"


def test_choices_without_tools():
    for choice in (None, "auto", "none"):
        assert check_tool_choice(choice, ()) == ToolChoice(mode="none")
    for choice in ("required", named("f")):
        with pytest.raises(InvalidRequest):
            check_tool_choice(choice, ())


def conversation(arguments, **fields):
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call], **fields},
        {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    ]


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ('{"a": [1, 2.5, null, "\\u00e9"]}', {"a": [1, 2.5, None, "é"]}),
        (' {"b": {}}\n', {"b": {}}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
    ],
)
def test_arguments_become_objects(sent, seen):
    messages = messages_for_template(conversation(sent))
    assert messages[1]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": seen}}
    ]
    assert messages[1]["content"] == ""
    assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "content": "42"}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        (conversation('{"a": '), "messages[1].tool_calls[0].function.arguments: must be the JSON text"),
        (conversation("[1]"), "must be the JSON text of an object"),
        (conversation('{"a": NaN}'), "must be the JSON text of an object"),
        (conversation([1]), "must be the JSON text of an object"),
        (conversation('{"a":' * 2000 + "1" + "}" * 2000), "must be the JSON text of an object"),
        (conversation('{"a": ' + "1" * 5000 + "}"), "messages[1].tool_calls[0].function.arguments"),
        (conversation("{}", tool_calls="f"), "messages[1].tool_calls: expected a list"),
        (conversation("{}", tool_calls=[1]), "messages[1].tool_calls[0]: must be"),
        (conversation("{}", tool_calls=[{"type": "custom"}]), "messages[1].tool_calls[0]: must be"),
        (conversation("{}", tool_calls=[{"type": "function"}]), "messages[1].tool_calls[0].function"),
        (conversation("{}", tool_calls=[named("a b")]), "messages[1].tool_calls[0].function.name"),
        (conversation("{}", tool_calls=[{**named("f"), "id": 7}]), "messages[1].tool_calls[0].id"),
        (conversation("{}", tool_calls=[named("f")] * (MAX_CALLS + 1)), f"at most {MAX_CALLS} are allowed"),
        (conversation("{}", role="user"), "messages[1].tool_calls: only the assistant makes calls"),
        ([{"role": "tool", "content": "x", "tool_call_id": 1}], "messages[0].tool_call_id"),
        ([], "messages: expected a non-empty list"),
    ],
)
def test_messages_are_refused(messages, says):
    with pytest.raises(InvalidRequest) as caught:
        messages_for_template(messages)
    assert says in str(caught.value)
    assert caught.value.param == "messages"


def test_what_was_sent_is_not_changed():
    messages = conversation('{"a": 1}')
    before = json.dumps(messages)
    messages_for_template(messages)
    assert json.dumps(messages) == before


def test_published_qwen3_template_writes_the_call_once(request):
    file = qwen3_directory(request.config) / "tokenizer_config.json"
    template = ChatTemplate(json.loads(file.read_text(encoding="utf-8"))["chat_template"])
    (tool,) = check_tools([function("f", parameters=SCHEMA)])
    text = template.render(messages_for_template(conversation('{"city":"Zürich"}')), tools=[tool.definition])
    assert '<tool_call>\n{"name": "f", "arguments": {"city": "Zürich"}}\n</tool_call>' in text
    assert json.dumps(tool.definition) in text
