"""Parsers that suit a model, found by its chat template."""

import json

import pytest
from parsing_case import parsed, qwen3_directory

from octavo.server.parsing.choosing import ParserChoice, choose_parsers, make_parser
from octavo.server.parsing.templates import knows_tools, mentions, written_text

HERMES = "{% if tools %}Call with <tool_call>JSON</tool_call>.{% endif %}{{ messages }}"
LLAMA3 = (
    "{% if not tools is defined %}{% set tools = none %}{% endif %}"
    "{% for message in messages %}{% if message.role == 'ipython' %}{{ message.content }}{% endif %}"
    '{% if tools %}{{ \'Answer {"name": function, "parameters": object}\' }}{% endif %}{% endfor %}'
)
THINKING = (
    "{{ messages[0].content }}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
STRIPPING = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}"
PLAIN = "{% for tool in [] %}{{ tool }}{% endfor %}{{ messages }}{# <tool_call> and <think> and tools #}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (HERMES, ParserChoice(tools="hermes")),
        (LLAMA3, ParserChoice(tools="llama3")),
        ("{{ messages }}<|python_tag|>", ParserChoice(tools="llama3")),
        ("{{ 'parameters' }}{{ messages }}", ParserChoice()),
        (THINKING, ParserChoice(thinks=True)),
        (STRIPPING, ParserChoice(thinks=True)),
        (HERMES + THINKING, ParserChoice(tools="hermes", thinks=True)),
        (HERMES + "{{ '<function=' }}", ParserChoice()),
        (PLAIN, ParserChoice()),
        ("{% if <tool_call>", ParserChoice()),
    ],
)
def test_auto(template, expected):
    assert choose_parsers([template]) == expected
    assert choose_parsers(["{{ messages }}", template]) == expected


def test_settings_decide():
    both = [HERMES + THINKING]
    assert choose_parsers(both, tool_parser="none", reasoning_parser="none") == ParserChoice()
    assert choose_parsers([], tool_parser="llama3", reasoning_parser="think") == ParserChoice(
        tools="llama3", thinks=True
    )
    assert choose_parsers([]) == ParserChoice()


def test_tags_that_decoding_leaves_out():
    assert choose_parsers([HERMES], special_tokens={"<tool_call>"}).needs_special_tokens
    assert choose_parsers([THINKING], special_tokens={"</think>"}).needs_special_tokens
    assert not choose_parsers([THINKING], special_tokens={"<tool_call>", "<|im_end|>"}).needs_special_tokens


def test_variables():
    assert [knows_tools(t) for t in (HERMES, LLAMA3, THINKING, PLAIN, "{% if")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert mentions(THINKING, "enable_thinking")
    assert not mentions(THINKING, "reasoning_effort")
    assert not mentions("{% set enable_thinking = true %}{{ enable_thinking }}", "enable_thinking")
    assert not mentions("{{ '{{ enable_thinking }}' }}", "enable_thinking")
    assert mentions("{% generation %}{{ x }}{% endgeneration %}", "x")
    assert "tool_call" not in written_text(PLAIN)


def test_nesting_without_end_is_no_template():
    assert not knows_tools("{{" + "(" * 100_000 + "tools" + ")" * 100_000 + "}}")
    assert not knows_tools("{% if tools %}" * 50_000 + "{% endif %}" * 50_000)


def test_parsers_of_a_choice():
    text = '<think>a</think><tool_call>{"name": "f"}</tool_call>'
    call = text.removeprefix("<think>a</think>")
    choice = ParserChoice(tools="hermes", thinks=True)
    assert parsed(make_parser(choice, tool_names=["f"]), text) == ("", "a", [("f", "{}")])
    assert parsed(make_parser(choice), text) == (call, "a", [])
    assert parsed(make_parser(choice, tool_names=["g"]), text) == (call, "a", [])
    assert parsed(make_parser(ParserChoice(), tool_names=["f"]), text) == (text, "", [])
    inside = make_parser(choice, tool_names=["f"], begins_inside=True)
    assert parsed(inside, text.removeprefix("<think>")) == ("", "a", [("f", "{}")])
    llama = make_parser(ParserChoice(tools="llama3"), tool_names=["f"])
    assert parsed(llama, '{"name": "f"}') == ("", "", [("f", "{}")])


def test_published_qwen3_template(request):
    file = qwen3_directory(request.config) / "tokenizer_config.json"
    template = json.loads(file.read_text(encoding="utf-8"))["chat_template"]
    assert choose_parsers([template]) == ParserChoice(tools="hermes", thinks=True)
    assert knows_tools(template)
    assert mentions(template, "enable_thinking")
    assert not mentions(template, "messages_of_others")
