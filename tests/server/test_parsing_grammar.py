"""Grammars of tool calls over real vocabularies: what they accept, what they refuse, and that it parses."""

import json
import random

import numpy as np
import pytest
from parsing_case import parsed, qwen3_directory

from octavo.core.errors import InvalidRequest
from octavo.core.structured import MAX_GRAMMAR_CHARS
from octavo.engine.grammar import GrammarCompiler
from octavo.server.parsing.choosing import ParserChoice, make_parser
from octavo.server.parsing.reasoning import ReasoningParser
from octavo.server.parsing.tool_grammar import check_tool_schemas, tool_grammar
from octavo.server.parsing.tools import check_tool_choice, check_tools
from octavo.text.loading import load_text
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.gguf import open_gguf

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
MOOD = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad é"]}, "sure": {"type": "boolean"}},
    "required": ["mood", "sure"],
    "additionalProperties": False,
}


def function(name, parameters=None, **fields):
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


TOOLS = check_tools([function("weather", WEATHER, strict=True), function("mood", MOOD), function("free")])
NAMES = [tool.name for tool in TOOLS]


@pytest.fixture(scope="module", params=["smollm2", "qwen3"])
def vocabulary(request):
    if request.param == "smollm2":
        tokenizer = load_text(open_gguf(request.getfixturevalue("smollm2_path")))[0]
    else:
        tokenizer = load_text(Checkpoint(qwen3_directory(request.config), "safetensors", {}, {}))[0]
    compiler = GrammarCompiler(
        tokenizer, vocab_size=tokenizer.vocab_size, end_token_ids=tokenizer.eos_token_ids
    )
    yield tokenizer, compiler
    compiler.close()


def grammar_for(choice="required", form="hermes", tools=TOOLS, **options):
    structured = tool_grammar(tools, check_tool_choice(choice, tools), form, **options)
    assert structured is not None
    return structured


def accepts(vocabulary, structured, text):
    """Whether a text is whole in the grammar, byte by byte. The bytes must be tokens of the vocabulary."""
    tokenizer, compiler = vocabulary
    ids = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size) if not tokenizer.is_special(i)}
    tokens = [ids[bytes([byte])] for byte in text.encode()]
    matcher = compiler.compile(structured).result()
    if matcher.count_acceptable(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.accept(token)
    return matcher.may_end


def allowed_ids(matcher, num_words):
    mask = np.zeros(num_words, np.uint32)
    matcher.fill_mask(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def call(name, arguments, form):
    if form == "hermes":
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    return f'{{"name": "{name}", "parameters": {arguments}}}'


SEPARATORS = {"hermes": "\n", "llama3": "; "}
GOOD = ['{"city": "Rome"}', '{"city": "a\\"}\\n</tool_call>", "days": -3}']
BAD = ["{}", '{"days": 3}', '{"city": 3}', '{"city": "Rome", "more": 1}', "[]", '"Rome"', "null"]
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_required(vocabulary, form):
    structured = grammar_for(form=form)
    for arguments in GOOD:
        assert accepts(vocabulary, structured, call("weather", arguments, form))
    for arguments in BAD:
        assert not accepts(vocabulary, structured, call("weather", arguments, form))
    good = call("weather", GOOD[0], form)
    two = good + SEPARATORS[form] + call("free", '{"x": [{}]}', form)
    assert accepts(vocabulary, structured, two)
    assert not accepts(vocabulary, grammar_for(form=form, parallel=False), two)
    assert accepts(vocabulary, grammar_for(form=form, parallel=False), good)
    for wrong in ("", "Hi", f"Hi {good}", f"{good} x", call("unknown", "{}", form), good[:-1]):
        assert not accepts(vocabulary, structured, wrong)


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_one_function(vocabulary, form):
    structured = grammar_for(NAMED, form)
    good = call("weather", GOOD[0], form)
    assert accepts(vocabulary, structured, good)
    assert not accepts(vocabulary, structured, good + SEPARATORS[form] + good)
    assert not accepts(vocabulary, structured, call("free", "{}", form))


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_strict_functions(vocabulary, form):
    structured = grammar_for("auto", form)
    good, bad = call("weather", GOOD[0], form), call("weather", BAD[0], form)
    assert accepts(vocabulary, structured, "Hello, <tool_cal> {} <b>x</b>\n")
    assert accepts(vocabulary, structured, "")
    assert accepts(vocabulary, structured, good + SEPARATORS[form] + good)
    assert accepts(vocabulary, structured, call("mood", '{"any": 1}', form))  # which is not strict
    assert not accepts(vocabulary, structured, bad)
    assert not accepts(vocabulary, structured, good + SEPARATORS[form] + bad)
    assert not accepts(vocabulary, structured, call("unknown", "{}", form))
    if form == "hermes":
        assert accepts(vocabulary, structured, f"Well. {good} and {good} so")
        assert not accepts(vocabulary, structured, f"Well. {bad}")


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_at_most_one_call(vocabulary, form):
    structured = grammar_for("auto", form, parallel=False)
    good = call("weather", GOOD[0], form)
    assert accepts(vocabulary, structured, "Hello.")
    assert accepts(vocabulary, structured, good)
    assert not accepts(vocabulary, structured, good + SEPARATORS[form] + good)


@pytest.mark.parametrize("form", ["hermes", "llama3"])
def test_thoughts(vocabulary, form):
    good, bad = call("weather", GOOD[0], form), call("weather", BAD[0], form)
    thoughts = "\nSo: <tool_call> {\n"
    may, inside = grammar_for(form=form, thoughts="may"), grammar_for(form=form, thoughts="inside")
    assert accepts(vocabulary, may, f"<think>{thoughts}</think>\n\n{good}")
    assert accepts(vocabulary, may, good)
    assert not accepts(vocabulary, may, f"<think>{thoughts}</think>\n\n{bad}")
    assert not accepts(vocabulary, may, f"<think>{thoughts}{good}")
    assert accepts(vocabulary, inside, f"{thoughts}</think>\n\n{good}")
    assert not accepts(vocabulary, inside, f"{thoughts}</think>\n\n{bad}")
    assert not accepts(vocabulary, inside, good)
    assert not accepts(vocabulary, grammar_for(form=form), f"<think>{thoughts}</think>\n\n{good}")


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_tags_that_are_tokens_are_allowed(vocabulary, choice):
    tokenizer, compiler = vocabulary
    text = call("weather", GOOD[0], "hermes")
    ids = tokenizer.encode(text, add_bos=False)
    tags = [
        i
        for i in range(tokenizer.vocab_size)
        if tokenizer.token_bytes(i) in (b"<tool_call>", b"</tool_call>")
    ]
    if tokenizer.vocab_size > 100_000:
        assert len(tags) == 2  # Qwen3's
        assert set(tags) < set(ids)
    matcher = compiler.compile(grammar_for(choice)).result()
    for id_ in ids:
        allowed = allowed_ids(matcher, compiler.num_words)
        if id_ in tags or id_ == ids[0]:
            assert id_ in allowed
        matcher.accept(id_)
    assert matcher.may_end


@pytest.mark.parametrize("form", ["hermes", "llama3"])
@pytest.mark.parametrize("thoughts", ["none", "inside"])
def test_whatever_is_allowed_parses(vocabulary, form, thoughts):
    """Tokens drawn at random from the masks always make calls that are right."""
    tokenizer, compiler = vocabulary
    tools = TOOLS[1:2]  # whose arguments come to an end soon
    structured = grammar_for(form=form, tools=tools, thoughts=thoughts)
    for seed in range(8):
        rng = random.Random(seed)
        matcher = compiler.compile(structured).result()
        ids = tokenizer.encode("Hm.</think>", add_bos=False) if thoughts == "inside" else []
        for id_ in ids:
            matcher.accept(id_)
        while not matcher.may_end or (not matcher.is_done and rng.random() < 0.5):
            allowed = set(allowed_ids(matcher, compiler.num_words)) - set(tokenizer.eos_token_ids)
            ids.append(int(rng.choice(sorted(allowed))))
            matcher.accept(ids[-1])
        inner = make_parser(ParserChoice(tools=form), tool_names=NAMES)
        parser = ReasoningParser(inner, begins_inside=True) if thoughts == "inside" else inner
        content, reasoning, calls = parsed(parser, tokenizer.decode(ids))
        assert content == ""
        assert reasoning == ("Hm." if thoughts == "inside" else "")
        assert calls
        for name, arguments in calls:
            value = json.loads(arguments)
            assert name == "mood"
            assert value["mood"] in MOOD["properties"]["mood"]["enum"]
            assert isinstance(value["sure"], bool)


def test_nothing_to_enforce():
    assert tool_grammar(TOOLS, check_tool_choice("none", TOOLS), "hermes") is None
    assert tool_grammar(TOOLS[1:], check_tool_choice("auto", TOOLS[1:]), "hermes") is None
    assert tool_grammar(TOOLS[1:], check_tool_choice(None, TOOLS[1:]), None) is None


@pytest.mark.parametrize(
    ("choice", "options", "param"),
    [("required", {}, "tool_choice"), (NAMED, {}, "tool_choice"), ("auto", {}, "tools")],
)
def test_a_model_without_a_known_form(choice, options, param):
    with pytest.raises(InvalidRequest, match="form of this model's tool calls is not known") as caught:
        tool_grammar(TOOLS, check_tool_choice(choice, TOOLS), None, **options)
    assert caught.value.param == param


def test_schemas_that_are_too_large_together():
    schema = {"type": "object", "description": "x" * (MAX_GRAMMAR_CHARS // 2)}
    tools = check_tools([function("f", schema), function("g", schema)])
    with pytest.raises(InvalidRequest, match="their schemas take") as caught:
        grammar_for(tools=tools)
    assert caught.value.param == "tools"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "nonsense"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"pattern": "(", "type": "string"}}},
    ],
)
def test_a_schema_that_does_not_compile_is_named(vocabulary, schema):
    _, compiler = vocabulary
    tools = check_tools([function("fine", WEATHER), function("broken", schema)])
    with pytest.raises(InvalidRequest):
        compiler.compile(grammar_for(tools=tools)).result()
    with pytest.raises(InvalidRequest, match="tools: the parameters of 'broken': ") as caught:
        check_tool_schemas(tools, compiler)
    assert caught.value.param == "tools"
    check_tool_schemas(tools[:1], compiler)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"const": 1}}}}},
        {"anyOf": [{"properties": {"x": {"const": 1}}}, {"properties": {"x": {"const": 1}}}]},
        {
            "properties": {"x": {"const": 1}},
            "title": "\x7f \u2028 é",
            "x-guidance": {"whitespace_flexible": True},
        },
    ],
)
def test_schemas_of_other_forms(vocabulary, schema):
    structured = grammar_for(tools=check_tools([function("f", schema)]))
    assert accepts(vocabulary, structured, call("f", '{"x": 1}', "hermes"))
    assert not accepts(vocabulary, structured, call("f", '{"x":1}', "hermes"))
    for arguments in ("1", "[]", '"x"') + (('{"x": 2}',) if schema else ()):
        assert not accepts(vocabulary, structured, call("f", arguments, "hermes"))
