"""Prompts of a file: how they are read, checked and sent."""

import json
from array import array

import pytest
from trace_texts import NONE, written

from octavo.bench.report.facts import workload_fact
from octavo.bench.workloads.conversations import Conversations
from octavo.bench.workloads.item import prompt_as_json
from octavo.bench.workloads.lengths import Fixed, Uniform
from octavo.bench.workloads.limits import TraceLimits
from octavo.bench.workloads.lines import MalformedLine
from octavo.bench.workloads.prompts_file import read_prompts
from octavo.bench.workloads.synthetic import Synthetic

PROMPTS = """\
{"prompt": "Hello", "max_tokens": 3}
{"prompt": [1, 2, 3]}
{"messages": [{"role": "user", "content": "Hi"}]}
"""


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (Synthetic(num_requests=1, input_len=Fixed(1), output_len=Fixed(1)), "1 request, 1 token in, 1 out"),
        (
            Synthetic(num_requests=2, input_len=Uniform(1, 4), output_len=Fixed(2), phrase_len=1),
            "2 requests, uniform:1,4 tokens in, 2 out, repeating 1 token",
        ),
        (
            Conversations(num_sessions=1, turns=Fixed(1), input_len=Fixed(2), output_len=Fixed(1)),
            "1 conversation of 1 turn, 2 tokens in, 1 out",
        ),
        (
            Conversations(num_sessions=2000, turns=Fixed(2), input_len=Fixed(2), output_len=Fixed(1)),
            "2,000 conversations of 2 turns, 2 tokens in, 1 out",
        ),
    ],
)
def test_one_request_is_not_several(workload, told):
    assert workload_fact(workload.describe()) == told


def message(keys):
    """A line with a good message, and one that has these keys."""
    return f'{{"messages": [{{"role": "user", "content": "a"}}, {{{keys}}}]}}'


def test_prompts_of_a_file(tmp_path):
    found = read_prompts(written(tmp_path, PROMPTS), NONE, max_tokens=8)
    assert not found.has_arrivals
    items = found.items(0)
    assert [item.prompt for item in items] == [
        "Hello",
        array("i", [1, 2, 3]),
        ({"role": "user", "content": "Hi"},),
    ]
    assert [item.max_tokens for item in items] == [3, 8, 8]
    assert found.items(1) == items
    assert not found.can_differ


CALLED = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "é"}]},
    {"role": "user", "content": "What is the weather in Oslo?", "name": "ada"},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"at": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "Rain.", "reasoning_content": "It said so.", "tool_calls": None},
    {"role": "assistant", "tool_calls": [{"function": {"name": "stop"}}]},
]


def test_messages_are_sent_as_the_file_has_them(tmp_path):
    found = read_prompts(written(tmp_path, json.dumps({"messages": CALLED})), NONE, max_tokens=8)
    (item,) = found.items(0)
    assert prompt_as_json(item.prompt) == CALLED
    (warm_up,) = found.items(-1)
    # 9 bytes are a word, 28 are 5; what has no text of its own stays.
    first, asked, *rest = warm_up.prompt
    assert [len(part["text"].split()) for part in first["content"]] == [1, 1]
    assert first["content"] != CALLED[0]["content"]
    assert (len(asked["content"].split()), asked["name"]) == (5, "ada")
    assert (rest[0], rest[3]) == (CALLED[2], CALLED[5])
    assert (rest[1]["tool_call_id"], rest[1]["content"] != "rain") == ("c1", True)


def test_to_warm_up_nothing_of_a_file_is_sent(tmp_path):
    texts = [
        {"prompt": "Once upon a time there was a"},  # 28 bytes: 5 words
        {"prompt": [5, 20_000, 7, 9], "max_tokens": 3},
        {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Why is the sky?"}]},
        {"prompt": "Ah"},
    ]
    found = read_prompts(written(tmp_path, "\n".join(map(json.dumps, texts))), NONE, max_tokens=8)
    items = found.items(-1)
    text, ids, chat, short = (item.prompt for item in items)
    assert (len(text.split()), len(ids), len(short.split())) == (5, 4, 1)
    assert all(1_000 <= token < 10_000 for token in ids)
    assert [message["role"] for message in chat] == ["system", "user"]
    assert (chat[0]["content"], len(chat[1]["content"].split())) == ("", 3)
    assert [item.max_tokens for item in items] == [8, 3, 8, 8]
    assert all(a.prompt != b.prompt for a, b in zip(items, found.items(0), strict=True))
    assert found.items(-1) == items != found.items(-2)


def test_made_up_ids_to_warm_up_are_below_the_greatest_of_the_file(tmp_path):
    found = read_prompts(written(tmp_path, json.dumps({"prompt": [3] * 64})), NONE, max_tokens=8)
    assert set(found.items(-1)[0].prompt) <= {0, 1, 2, 3}


@pytest.mark.parametrize("start", [0, 0.5, 100, 1e9])
def test_the_first_prompt_of_a_file_comes_at_once(tmp_path, start):
    lines = ({"prompt": name, "arrival_s": start + after} for name, after in (("b", 2), ("a", 0), ("c", 3)))
    file = written(tmp_path, "\n".join(map(json.dumps, lines)))
    items = read_prompts(file, TraceLimits(scale=2, limit=2), max_tokens=8).items(0)
    assert [(item.index, item.prompt, item.arrival_s) for item in items] == [(0, "a", 0.0), (1, "b", 4.0)]


def test_prompts_are_cut_if_they_are_token_ids(tmp_path):
    limits = TraceLimits(max_prompt_tokens=2)
    ids, *texts = (line + "\n" for line in sorted(PROMPTS.splitlines(), key=lambda line: "[1" not in line))
    (item,) = read_prompts(written(tmp_path, ids), limits, max_tokens=8).items(0)
    assert item.prompt == array("i", [1, 2])
    for text in texts:
        with pytest.raises(MalformedLine, match=r"lines:2: max_prompt_tokens=2 can cut .* this is text"):
            read_prompts(written(tmp_path, ids + text), limits, max_tokens=8)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{}", "must have either"),
        ('{"prompt": "a", "messages": []}', "must have either"),
        ('{"prompt": ""}', "prompt=''"),
        ('{"prompt": [1, "a"]}', "prompt="),
        ('{"prompt": [1, 99999999999]}', "prompt="),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens=0"),
        (
            '{"prompt": "a", "max_token": 9}',
            "unknown key 'max_token': the known ones are prompt, messages, max_tokens, arrival_s",
        ),
        ('{"prompt": "a", "temperature": 0}', "unknown key 'temperature'"),
        ('{"messages": []}', "messages=[]"),
        ('{"messages": {"role": "user"}}', "messages={'role': 'user'}: must be a list of messages"),
        ('{"messages": ["Hi"]}', "messages[0]='Hi': must be a JSON object"),
        (message('"role": "user"'), "messages[1].content: missing; only a message with tool_calls may do"),
        (message('"content": "a"'), "messages[1].role: expected a name such as 'user', got None"),
        (message('"role": 3, "content": "a"'), "messages[1].role: expected a name such as 'user', got 3"),
        (
            message('"rol": "user", "content": "a"'),
            "messages[1]: unknown key 'rol': the known ones are role, content, name, tool_calls, "
            "tool_call_id, refusal, reasoning_content",
        ),
        (message('"role": "user", "content": 3'), "messages[1].content: expected a text or a list of parts"),
        (message('"role": "user", "content": [{"type": "image_url"}]'), "got type 'image_url'; only text"),
        (message('"role": "user", "content": [{"type": "text"}]'), "messages[1].content[0].text: expected a"),
        (message('"role": "user", "content": "a", "name": 3'), "messages[1]: name=3: must be a text"),
        (message('"role": "tool", "content": "a", "tool_call_id": 3'), "tool_call_id=3: must be a text"),
        (message('"role": "assistant", "tool_calls": "f"'), "messages[1]: tool_calls='f': must be a list of"),
        (
            message('"role": "assistant", "tool_calls": [{"function": "f"}]'),
            "tool_calls=[{'function': 'f'}]: ",
        ),
        (message('"role": "assistant", "tool_calls": []'), "messages[1].content: missing"),
        (message('"role": "user", "content": "a", "name": ' + "[" * 100 + "]" * 100), "nested more than 64"),
        (
            message('"role": "user", "content": "a", "name": "\\ud800"'),
            "messages[1]: name='\\ud800': holds half a",
        ),
        (
            message('"role": "user", "content": [{"type": "text", "text": "\\udfff"}]'),
            "holds half a character",
        ),
        ('{"prompt": "a", "arrival_s": 1}', "in all lines or in none"),
        (
            '{"prompt": "a", "max_tokens": 16777217}',
            "max_tokens=16777217: must be an integer from 1 to 16,777,",
        ),
        ('{"prompt": "a\\ud800"}', "holds half a character"),
        ('{"messages": [{"role": "user", "content": "\\udfff"}]}', "holds half a character"),
    ],
)
def test_malformed_prompts(tmp_path, bad, message):
    with pytest.raises(MalformedLine, match="lines:4: ") as caught:
        read_prompts(written(tmp_path, PROMPTS + bad), NONE, max_tokens=8)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("is_chat", "line", "told"),
    [
        (False, 3, "messages, which only the chat endpoint takes: use --chat"),
        (True, 2, "token ids, which the chat endpoint does not take: leave --chat out"),
        (None, None, ""),
    ],
)
def test_prompts_must_suit_the_endpoint(tmp_path, is_chat, line, told):
    file = written(tmp_path, PROMPTS)
    if line is None:
        assert len(read_prompts(file, NONE, max_tokens=8, is_chat=is_chat).requests) == 3
        return
    with pytest.raises(MalformedLine, match=f"lines:{line}: {told}"):
        read_prompts(file, NONE, max_tokens=8, is_chat=is_chat)
