"""Tool calls, thoughts and template variables over HTTP, with Qwen3's own tokenizer and template.

The weights are small and random, so what the model says is nonsense; what it must say is up to grammars.
"""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from parsing_case import qwen3_directory
from real_server import Launch, Server
from tiny import save, tiny_qwen3

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather somewhere.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Paris", "Zürich", "東京"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NO_PARAMETERS: Any = {"type": "object", "properties": {}, "additionalProperties": False}
TIME: Any = {"type": "function", "function": {"name": "get_time", "parameters": NO_PARAMETERS}}
SHAPE: Any = {
    "vocab_size": 151_936,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "eos_token_id": 151_645,
    "bos_token_id": None,
    "tie_word_embeddings": True,
}
ASK: Any = {
    "messages": [{"role": "user", "content": "What is the weather like?"}],
    "tools": [WEATHER, TIME],
    "temperature": 1.0,
    "max_tokens": 200,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
}


@pytest.fixture(scope="module")
def qwen3(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, launch_server: Launch
) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("qwen3")
    save(tiny_qwen3(**SHAPE), directory)
    for file in qwen3_directory(request.config).glob("tokenizer*.json"):
        shutil.copy(file, directory)
    server = launch_server("--model", str(directory), "--model-name", "qwen3", "--kv-memory", "64MiB")
    yield server
    server.stop()


@pytest.fixture
def client(qwen3: Server) -> Iterator[openai.OpenAI]:
    with qwen3.openai() as client:
        yield client


def checked(call: Any) -> dict[str, Any]:
    assert call.type == "function"
    arguments = json.loads(call.function.arguments)
    if call.function.name == "get_weather":
        assert arguments["city"] in ("Paris", "Zürich", "東京")
        assert 1 <= arguments["days"] <= 9
    else:
        assert call.function.name == "get_time"
    return arguments


@pytest.mark.parametrize("seed", range(4))
def test_a_required_call_is_a_proper_call(client: openai.OpenAI, seed: int):
    answer = client.chat.completions.create(
        model="qwen3", tool_choice="required", parallel_tool_calls=False, seed=seed, **ASK
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    checked(call)


def test_several_calls_in_one_answer(client: openai.OpenAI):
    answer = client.chat.completions.create(model="qwen3", tool_choice="required", seed=1, n=16, **ASK)
    several = [c.message.tool_calls for c in answer.choices if c.finish_reason == "tool_calls"]
    assert any(len(calls) > 1 for calls in several)  # random weights: about every second goes on
    for calls in several:
        for call in calls:
            checked(call)
        assert len({call.id for call in calls}) == len(calls)


def test_a_named_function_is_called_and_streams(client: openai.OpenAI):
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = client.chat.completions.create(model="qwen3", tool_choice=named, seed=5, **ASK).choices[0].message
    (call,) = whole.tool_calls
    assert call.function.name == "get_weather"
    checked(call)
    name, arguments, reason = "", "", None
    for chunk in client.chat.completions.create(model="qwen3", tool_choice=named, seed=5, stream=True, **ASK):
        choice = chunk.choices[0]
        assert not choice.delta.content
        for piece in choice.delta.tool_calls or ():
            assert piece.index == 0
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
        reason = choice.finish_reason or reason
    assert (name, arguments, reason) == ("get_weather", call.function.arguments, "tool_calls")


def test_the_conversation_goes_on_with_the_result(client: openai.OpenAI, qwen3: Server):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
    messages = [
        *ASK["messages"],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    answer = client.chat.completions.create(
        model="qwen3", messages=messages, tools=[WEATHER], max_tokens=4, temperature=0
    )
    with qwen3.http() as http:
        asked = {"messages": messages, "tools": [WEATHER]}
        tokens = http.post("/tokenize", json=asked).json()
        text = http.post("/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"]
    assert answer.usage.prompt_tokens == tokens["count"]
    assert (
        '{"name": "get_weather", "arguments": {"city": "Paris"}}' in text
    )  # an object, not a text in quotes
    assert "<tool_response>\nsunny\n</tool_response>" in text


def test_thoughts_are_kept_apart(client: openai.OpenAI):
    """The model is made to think of something, and then to say something."""
    grammar = 'start: "<think>\\nso I think\\n</think>\\n\\n" "the answer"'
    ask: Any = {
        "model": "qwen3",
        "messages": ASK["messages"],
        "extra_body": {"structured_outputs": {"grammar": grammar}},
    }
    message = client.chat.completions.create(**ask).choices[0].message
    assert message.content == "the answer"
    assert message.reasoning_content == "so I think"
    thoughts = content = ""
    for chunk in client.chat.completions.create(**ask, stream=True):
        thoughts += getattr(chunk.choices[0].delta, "reasoning_content", None) or ""
        content += chunk.choices[0].delta.content or ""
    assert (thoughts, content) == ("so I think", "the answer")


def test_the_templates_variables(client: openai.OpenAI, qwen3: Server):
    def count(**options: Any) -> int:
        ask = {"model": "qwen3", "messages": ASK["messages"], "max_tokens": 1, **options}
        return client.chat.completions.create(**ask).usage.prompt_tokens

    thinking, silent = count(), count(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert silent > thinking  # the template writes empty thoughts
    assert count(reasoning_effort="none") == silent
    assert count(reasoning_effort="high") == thinking
    with pytest.raises(openai.BadRequestError, match="enable_thought"):
        count(extra_body={"chat_template_kwargs": {"enable_thought": False}})
    with pytest.raises(openai.BadRequestError, match="verbosity"):
        count(verbosity="low")


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice", "nobody"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "get_weather"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "a b"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "required"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format", "tool"),
    ],
)
def test_what_is_wrong_with_tools(client: openai.OpenAI, options: dict[str, Any], param: str, says: str):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": "qwen3", **ASK, **options})
    assert refused.value.param == param
    assert says in refused.value.message


def test_a_schema_that_cannot_be_followed_names_its_function(client: openai.OpenAI):
    broken: Any = {
        "type": "function",
        "function": {
            "name": "broken",
            "parameters": {"type": "object", "properties": {"x": {"type": "who"}}},
        },
    }
    with pytest.raises(openai.BadRequestError, match="broken"):
        client.chat.completions.create(
            model="qwen3", tool_choice="required", **{**ASK, "tools": [WEATHER, broken]}
        )


def test_a_template_without_tools_refuses_them(server: Server):
    with server.openai() as client, pytest.raises(openai.BadRequestError, match="knows no tools") as refused:
        client.chat.completions.create(model=server.model, messages=ASK["messages"], tools=[WEATHER])
    assert refused.value.param == "tools"
