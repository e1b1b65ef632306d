"""Content, reasoning and tool calls in a model's text, however it is cut into pieces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing_case import counting_ids, cut, merged, parsed, read, texts_of

from octavo.server.parsing.events import (
    ContentDelta,
    PlainParser,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallBegin,
    parse,
)
from octavo.server.parsing.hermes import HermesParser
from octavo.server.parsing.json_text import MAX_DEPTH, JsonScanner, is_json_object
from octavo.server.parsing.llama3 import Llama3Parser
from octavo.server.parsing.reasoning import ReasoningParser, ends_inside

NAMES = ("weather", "f")
CALL = '{"name": "weather", "arguments": {"city": "Zürich \\"x\\" {"}}'
TAGGED = f"<tool_call>\n{CALL}\n</tool_call>"
ARGUMENTS = '{"city": "Zürich \\"x\\" {"}'
LLAMA_CALL = CALL.replace('"arguments"', '"parameters"')

MAKERS = {
    "plain": PlainParser,
    "hermes": lambda: HermesParser(NAMES, make_id=counting_ids()),
    "llama3": lambda: Llama3Parser(NAMES, make_id=counting_ids()),
    "reasoning": ReasoningParser,
    "reasoning inside": lambda: ReasoningParser(begins_inside=True),
    "reasoning, hermes": lambda: ReasoningParser(HermesParser(NAMES, make_id=counting_ids())),
    "reasoning inside, llama3": lambda: ReasoningParser(
        Llama3Parser(NAMES, make_id=counting_ids()), begins_inside=True
    ),
}
FRAGMENTS = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<|python_tag|>",
    ";",
    " ",
    "\n",
    "\n\n",
    "{",
    "}",
    '"',
    CALL,
    TAGGED,
    LLAMA_CALL,
    '{"name": "f"}',
    '{"name": "f", "arguments": null}',
    '{"arguments": {"a": [1.5e3, true]}, "name": "f"}',
    '{"name": "f", "parameters": "{\\"a\\": 1}"}',
    '{"id": 7, "name": "f", "arguments": {}, "arguments": {}}',
    '{"name": "unknown", "arguments": {}}',
    '{"name": "f", "arguments": {"a": 01}}',
]


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=400)
@given(data=st.data())
def test_pieces_do_not_matter(name, data):
    text = data.draw(texts_of(FRAGMENTS))
    pieces = data.draw(cut(text))
    whole = merged(read(MAKERS[name](), [text]))
    assert merged(read(MAKERS[name](), pieces)) == whole
    assert merged(read(MAKERS[name](), text)) == whole


@pytest.mark.parametrize("name", ["plain", "hermes", "llama3"])
@settings(max_examples=300)
@given(text=texts_of(FRAGMENTS))
def test_what_is_no_call_is_content_as_written(name, text):
    content, reasoning, calls = parsed(MAKERS[name](), text)
    assert reasoning == ""
    if not calls:
        assert content == text
    else:  # content is the text with pieces left out
        rest = iter(text)
        assert all(char in rest for char in content)


@pytest.mark.parametrize("make", [MAKERS["hermes"], MAKERS["llama3"]])
@given(text=texts_of(FRAGMENTS))
def test_arguments_given_out_begin_an_object(make, text):
    for name, arguments in parsed(make(), text)[2]:
        assert name in NAMES
        assert arguments.startswith("{")
        scanner = JsonScanner()
        assert scanner.feed(arguments) == len(arguments)


names = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
calls_made = st.lists(
    st.tuples(names, st.dictionaries(st.text(), values, max_size=3)), min_size=1, max_size=3
)


@st.composite
def written_calls(draw, key):
    """Calls, and the JSON text of each as some model may write it."""
    made = draw(calls_made)
    indent, ascii_ = draw(st.sampled_from([None, 2])), draw(st.booleans())
    return made, [
        json.dumps({"name": name, key: arguments}, indent=indent, ensure_ascii=ascii_)
        for name, arguments in made
    ]


@given(written=written_calls("arguments"), between=st.sampled_from(["", "\n", " \n\n"]), before=st.booleans())
def test_hermes_reads_back_what_was_written(written, between, before):
    made, texts = written
    lead = "Let me see <tool_cal> 1 < 2.\n" if before else ""
    text = lead + between.join(f"<tool_call>\n{t}\n</tool_call>" for t in texts) + between
    content, _, calls = parsed(HermesParser(), text)
    assert content == lead.rstrip()
    assert [(name, json.loads(arguments)) for name, arguments in calls] == made


@given(written=written_calls("parameters"), tag=st.sampled_from(["", "<|python_tag|>", "\n<|python_tag|> "]))
def test_llama3_reads_back_what_was_written(written, tag):
    made, texts = written
    content, _, calls = parsed(Llama3Parser(), tag + "; ".join(texts))
    assert content == ""
    assert [(name, json.loads(arguments)) for name, arguments in calls] == made


def test_hermes_streams_arguments_as_they_come():
    parser = HermesParser(NAMES, make_id=lambda: "call_x")
    assert parser.push("Sure.\n\n<tool") == [ContentDelta("Sure.")]
    assert parser.push('_call>{"name": "wea') == []
    assert parser.push('ther", "arguments": ') == []
    assert parser.push('{"city"') == [ToolCallBegin(0, "call_x", "weather"), ToolCallArguments(0, '{"city"')]
    assert parser.push(': "Bern"') == [ToolCallArguments(0, ': "Bern"')]
    assert parser.push("}}</tool_call>\n") == [ToolCallArguments(0, "}")]
    assert parser.push("Done") == [ContentDelta("\nDone")]
    assert parser.finish() == []


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n{",
        '<tool_call>{"name": "weather", "arguments": ',
        '<tool_call>{"name": "f"}',
        '<tool_call>{"name": "f"}</tool_cal',
        "<tool_call>no JSON</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": nul}</tool_call>',
        '<tool_call>{"name": "f", "name": "f"}</tool_call>',
        '<tool_call>{"name": "f"} x</tool_call>',
        '<tool_call>{"name": "f",}</tool_call>',
        "a <tool_call> b </tool_call> c",
        "</tool_call>",
        " \n",
    ],
)
def test_hermes_leaves_what_is_no_call(text):
    assert parsed(HermesParser(NAMES), text) == (text, "", [])


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": {}}', "{}"),
        ('{"name": "f", "parameters": {"a":1}}', '{"a":1}'),
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\u00e9\\"}"}', '{"a": "é"}'),
        (' {\n"type" : "function" , "name":"\\u0066", "n": -1.5e+3, "arguments" : { } } ', "{ }"),
    ],
)
def test_forms_of_a_call(body, arguments):
    assert parsed(HermesParser(NAMES), f"<tool_call>{body}</tool_call>") == ("", "", [("f", arguments)])
    assert parsed(Llama3Parser(NAMES), body) == ("", "", [("f", arguments)])


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": 1', "", '{"a": 1'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}\n</tool_c', "", '{"a": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"a": x}}</tool_call>', "x}}</tool_call>", '{"a": '),
        ('<tool_call>{"name": "f", "arguments": {}, x}</tool_call>', ", x}</tool_call>", "{}"),
        ('<tool_call>{"name": "f", "arguments": {}}} y', "}} y", "{}"),
    ],
)
def test_a_call_given_out_in_part_stays(text, content, arguments):
    assert parsed(HermesParser(NAMES), text) == (content, "", [("f", arguments)])


def test_a_call_behind_a_broken_one_counts():
    text = f"<tool_call>{{x</tool_call>{TAGGED}"
    assert parsed(HermesParser(NAMES), text) == (
        "<tool_call>{x</tool_call>",
        "",
        [("weather", ARGUMENTS)],
    )


def test_tags_within_arguments_are_arguments():
    text = '<tool_call>{"name": "f", "arguments": {"a": "</tool_call><tool_call>"}}</tool_call>'
    assert parsed(HermesParser(NAMES), text)[2] == [("f", '{"a": "</tool_call><tool_call>"}')]


@pytest.mark.parametrize(
    "text",
    [
        f"So: {LLAMA_CALL}",
        "{",
        '{"name": "unknown", "parameters": {}}',
        '{"answer": 42}',
        "<|python_tag|>print(1)",
        "<|python_tag|>",
        "<|python_tag|><|python_tag|>" + LLAMA_CALL,
        "; " + LLAMA_CALL,
        "{}; " + LLAMA_CALL,
        "",
    ],
)
def test_llama3_leaves_what_is_no_call(text):
    assert parsed(Llama3Parser(NAMES), text) == (text, "", [])


@pytest.mark.parametrize(
    ("behind", "content"),
    [("", ""), (" \n", ""), (" ; ", ""), (" and {", " and {"), ("; {}", "; {}"), (LLAMA_CALL, LLAMA_CALL)],
)
def test_llama3_behind_a_call(behind, content):
    assert parsed(Llama3Parser(NAMES), LLAMA_CALL + behind) == (content, "", [("weather", ARGUMENTS)])


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("<think>\n\nhm\n x \n\n</think>\n\nYes \n", "Yes \n", "hm\n x"),
        ("<think>\n\n</think>\n\nYes", "Yes", ""),
        ("\n<think>hm", "", "hm"),
        ("<think>hm\n</thi", "", "hm\n</thi"),
        ("<think>hm\n", "", "hm"),
        ("<thi", "<thi", ""),
        (" \n", " \n", ""),
        ("Yes <think>x</think>", "Yes <think>x</think>", ""),
        ("<think>a<think>b</think>c</think>", "c</think>", "a<think>b"),
    ],
)
def test_reasoning(text, content, reasoning):
    assert parsed(ReasoningParser(), text) == (content, reasoning, [])


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("hm\n</think>\n\nYes", "Yes", "hm"),
        ("\n<think>\nhm</think>Yes", "Yes", "hm"),
        ("</think>Yes", "Yes", ""),
        ("hm", "", "hm"),
        ("<thi", "", "<thi"),
    ],
)
def test_reasoning_that_the_prompt_began(text, content, reasoning):
    assert parsed(ReasoningParser(begins_inside=True), text) == (content, reasoning, [])


def test_prompts_that_end_inside():
    assert ends_inside("<|im_start|>assistant\n<think>\n")
    assert not ends_inside("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not ends_inside("<|im_start|>assistant\n")


def test_reasoning_and_tools_together():
    parser = ReasoningParser(HermesParser(NAMES))
    text = f"<think>\n<tool_call> or not\n</think>\n\nLook:\n{TAGGED}\n"
    assert parsed(parser, text) == ("Look:", "<tool_call> or not", [("weather", ARGUMENTS)])
    assert read(ReasoningParser(PlainParser()), ["<think>a", "b</think>c"]) == [
        ReasoningDelta("a"),
        ReasoningDelta("b"),
        ContentDelta("c"),
    ]


def test_calls_have_different_ids():
    first, second = parse(HermesParser(), TAGGED + TAGGED).tool_calls
    assert first.call_id.startswith("call_")
    assert first.call_id != second.call_id


def test_many_characters_take_linear_time():
    """A million characters of each kind that is held back or scanned; quadratic work would take hours."""
    for text in ("<tool_call>{", " \n", "<tool_cal", '<tool_call>{"name": "f", "arguments": {"a": "'):
        content, _, _ = parsed_whole(HermesParser(NAMES), text * (1_000_000 // len(text)))
        assert content


def parsed_whole(parser, text):
    output = parse(parser, text)
    return output.content, output.reasoning, output.tool_calls


@settings(max_examples=500)
@given(text=st.one_of(values.map(json.dumps), st.text(alphabet='{}[]",:\\ue1-+.0 tfnrlas\n', max_size=12)))
def test_scanner_agrees_with_json(text):
    body = '{"k":' + text + "}"
    try:
        json.loads(body, parse_constant=lambda name: pytest.fail(name))
        expected = True
    except ValueError:
        expected = False
    assert is_json_object(body) == expected


def test_scanner_bounds_depth():
    assert is_json_object('{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH)
    assert not is_json_object('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1))
