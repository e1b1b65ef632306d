"""The official client against a real server with a real model."""

import json
import math
from typing import Any

import openai
import pytest
from real_server import Server

HELLO: Any = [{"role": "user", "content": "Name three colours."}]
GREEDY: Any = {"temperature": 0}


def chat(client: openai.OpenAI, server: Server, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": server.model, "messages": HELLO, **options})


def complete(client: openai.OpenAI, server: Server, **options: Any) -> Any:
    return client.completions.create(**{"model": server.model, "prompt": "One, two, three,", **options})


def test_chat_answers_and_counts(client, server):
    answer = chat(client, server, max_tokens=20, **GREEDY)
    assert answer.object == "chat.completion"
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert len(choice.message.content) > 10
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20


def test_stream_joins_to_the_whole_answer(client, server):
    whole = chat(client, server, max_tokens=30, **GREEDY)
    chunks = list(
        chat(client, server, max_tokens=30, stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    *pieces, last = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in pieces]
    assert reasons == [None] * (len(pieces) - 1) + ["length"]
    assert all(chunk.usage is None for chunk in pieces)
    assert last.choices == []
    assert last.usage.completion_tokens == 30
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_completion_stream_joins_to_the_whole(client, server):
    whole = complete(client, server, max_tokens=25, **GREEDY)
    chunks = list(complete(client, server, max_tokens=25, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert complete(client, server, **GREEDY).usage.completion_tokens == 16  # OpenAI's default


def test_seeds_repeat_and_none_does_not(client, server):
    def text(**options: Any) -> str:
        return chat(client, server, max_tokens=24, temperature=1.0, **options).choices[0].message.content

    assert text(seed=7) == text(seed=7)
    assert text(seed=7) != text(seed=8)
    assert text(seed=-1) == text(seed=-1)
    assert len({text() for _ in range(4)}) == 4


def test_samples_share_the_prompt_and_differ(client, server):
    ask: Any = {"n": 4, "max_tokens": 16, "temperature": 1.0, "seed": 3, "extra_body": {"ignore_eos": True}}
    answer = chat(client, server, **ask)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) == 4
    assert answer.usage.completion_tokens == 64
    streamed = ["", "", "", ""]
    for chunk in chat(client, server, stream=True, **ask):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [choice.message.content for choice in answer.choices]


def test_several_prompts_keep_their_order(client, server):
    prompts = ["The capital of France is", "Two plus two is", "Water is made of"]
    together = complete(client, server, prompt=prompts, max_tokens=8, **GREEDY)
    alone = [complete(client, server, prompt=p, max_tokens=8, **GREEDY).choices[0].text for p in prompts]
    assert [choice.text for choice in together.choices] == alone
    streamed = ["", "", ""]
    for chunk in complete(client, server, prompt=prompts, max_tokens=8, stream=True, **GREEDY):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == alone


def test_token_ids_are_a_prompt(client, server, http):
    tokens = http.post("/tokenize", json={"prompt": "The capital of France is"}).json()["tokens"]
    by_text = complete(client, server, prompt="The capital of France is", max_tokens=8, **GREEDY)
    by_ids = complete(client, server, prompt=tokens, max_tokens=8, **GREEDY)
    assert by_ids.choices[0].text == by_text.choices[0].text


def test_chat_logprobs(client, server):
    for stream in (False, True):
        answer = chat(client, server, max_tokens=12, logprobs=True, top_logprobs=3, stream=stream, **GREEDY)
        if stream:
            chunks = list(answer)
            entries = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
            text = "".join(c.choices[0].delta.content or "" for c in chunks)
        else:
            entries = answer.choices[0].logprobs.content
            text = answer.choices[0].message.content
        assert len(entries) == 12
        assert b"".join(bytes(e.bytes) for e in entries).decode() == text
        for entry in entries:
            assert [t.logprob for t in entry.top_logprobs] == sorted(
                (t.logprob for t in entry.top_logprobs), reverse=True
            )
            assert len(entry.top_logprobs) == 3
            assert entry.top_logprobs[0].token == entry.token  # greedy takes the likeliest
            assert entry.logprob <= 0
    bare = chat(client, server, max_tokens=4, logprobs=True, **GREEDY).choices[0].logprobs.content
    assert [entry.top_logprobs for entry in bare] == [[]] * 4


def test_completion_logprobs_and_echo(client, server):
    prompt = "One, two, three,"
    answer = complete(client, server, max_tokens=6, logprobs=2, echo=True, **GREEDY)
    (choice,) = answer.choices
    found = choice.logprobs
    assert choice.text.startswith(prompt)
    assert "".join(found.tokens) == choice.text
    assert found.token_logprobs[0] is None
    assert found.top_logprobs[0] is None
    assert all(math.isfinite(value) for value in found.token_logprobs[1:])
    assert [choice.text[o : o + len(t)] for o, t in zip(found.text_offset, found.tokens, strict=True)] == (
        found.tokens
    )
    assert len(found.tokens) == answer.usage.total_tokens
    # Only the prompt's, with no new token; the same numbers.
    scored = complete(client, server, max_tokens=0, logprobs=2, echo=True, **GREEDY)
    assert scored.choices[0].text == prompt
    assert scored.usage.completion_tokens == 0
    assert scored.choices[0].logprobs.token_logprobs == found.token_logprobs[:-6]
    for stream in complete(client, server, max_tokens=6, echo=True, stream=True, **GREEDY):
        assert stream.choices[0].text.startswith(prompt)
        break
    chosen_only = complete(client, server, max_tokens=3, logprobs=0, **GREEDY).choices[0].logprobs
    assert len(chosen_only.token_logprobs) == 3
    assert [len(top) for top in chosen_only.top_logprobs] == [1, 1, 1]


def test_stop_texts_cut_alike_everywhere(client, server):
    whole = complete(client, server, max_tokens=40, **GREEDY).choices[0].text
    stop = whole[10:14]
    cut = complete(client, server, max_tokens=40, stop=[stop], **GREEDY)
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    streamed = complete(client, server, max_tokens=40, stop=stop, stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in streamed) == cut.choices[0].text
    answer = chat(client, server, max_tokens=40, **GREEDY).choices[0].message.content
    mark = answer[8:12]
    stopped = chat(client, server, max_tokens=40, stop=mark, **GREEDY).choices[0]
    assert stopped.message.content == answer[: answer.index(mark)]
    assert stopped.finish_reason == "stop"


def test_json_schema_and_json_object(client, server):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "maximum": 120},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    answer = chat(client, server, max_tokens=80, response_format=form, temperature=1.0, seed=1)
    person = json.loads(answer.choices[0].message.content)
    assert set(person) == {"name", "age"}
    assert isinstance(person["age"], int)
    streamed = chat(client, server, max_tokens=80, response_format=form, temperature=1.0, seed=1, stream=True)
    assert json.loads("".join(c.choices[0].delta.content or "" for c in streamed)) == person
    with pytest.raises(openai.BadRequestError) as refused:
        chat(
            client,
            server,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "who"}}},
        )
    assert "who" in refused.value.message


def test_beams_and_best_of(client, server):
    extra = {"use_beam_search": True}
    answer = complete(client, server, n=2, best_of=4, max_tokens=8, extra_body=extra)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text != answer.choices[1].text
    best = complete(client, server, n=1, best_of=3, max_tokens=8, temperature=1.0, seed=2)
    assert len(best.choices) == 1
    with pytest.raises(openai.BadRequestError, match="best_of"):
        complete(client, server, best_of=3, stream=True)


def test_errors_name_parameter_and_limit(client, server):
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"temperature": -1}, "temperature", "1e6"),
        ({"top_p": 0.0}, "top_p", "above 0"),
        ({"n": 65}, "n", "64"),
        ({"top_logprobs": 21, "logprobs": True}, "logprobs", "20"),
        ({"logit_bias": {"49152": 1}}, "logit_bias", "49151"),
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"messages": []}, "messages", "non-empty"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "prompt", "8192"),
        ({"audio": {"voice": "x", "format": "wav"}}, "audio", "text"),
        ({"extra_body": {"mirostat": 2}}, "mirostat", "no such parameter"),
    ]
    for options, param, limit in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            chat(client, server, **options)
        assert refused.value.param == param, options
        assert limit in refused.value.message, refused.value.message
        assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        chat(client, server, model="gpt-5")
    assert missing.value.code == "model_not_found"
    assert server.model in missing.value.message


def test_a_cancelled_stream_gives_its_blocks_back(client, server):
    before = server.wait_until_idle()["pool"]
    stream = chat(client, server, max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    after = server.wait_until_idle()["pool"]
    assert after["used_blocks"] == before["used_blocks"] == 0


def test_models(client, server):
    assert [model.id for model in client.models.list()] == [server.model]
    assert client.models.retrieve(server.model).id == server.model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
