"""What every client can do wrong, and what the server says to it; keys, hosts, ids, tokens, languages."""

import json
import socket
from typing import Any

import httpx
import pytest
from real_server import Launch, Server

JSON = {"content-type": "application/json"}
STORY: dict[str, Any] = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, which has OpenAI's form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        ("/v1/completions", {}, "prompt", "required"),
        ("/v1/completions", {"prompt": ""}, "prompt", "empty"),
        ("/v1/completions", {"prompt": []}, "prompt", "empty"),
        ("/v1/completions", {"prompt": [[]]}, "prompt", "empty"),
        ("/v1/completions", {"prompt": 5}, "prompt", "5"),
        ("/v1/completions", {"prompt": [-1]}, "prompt", "-1"),
        ("/v1/completions", {"prompt": [49152]}, "prompt", "49151"),
        ("/v1/completions", {"prompt": ["a"] * 65}, "prompt", "64"),
        ("/v1/completions", {"prompt": "\ud800"}, "prompt", "surrogate"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix", "middle"),
        ("/v1/completions", {"prompt": "a", "temperature": "hot"}, "temperature", "hot"),
        ("/v1/completions", {"prompt": "a", "temperature": 10**400}, "temperature", "number"),
        ("/v1/completions", {"prompt": "a", "n": True}, "n", "True"),
        ("/v1/completions", {"prompt": "a", "stop": [""]}, "stop", "empty"),
        ("/v1/completions", {"prompt": "a", "stop": ["x"] * 65}, "stop", "64"),
        ("/v1/completions", {"prompt": "a", "stop": "x" * 4097}, "stop", "4096"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [49152]}, "stop_token_ids", "49151"),
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, "logprobs", "20"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens", "at least 1"),
        ("/v1/completions", {"prompt": "a", "priority": 1}, "priority", "fcfs"),
        ("/v1/completions", {"prompt": "a", "length_penalty": 2.0}, "length_penalty", "use_beam_search"),
        ("/v1/completions", {"prompt": "a", "use_beam_search": True, "top_k": 5}, "top_k", "use_beam_search"),
        ("/v1/completions", {"prompt": "a", "bad_words": ["a" * 5000]}, "bad_words", "4096"),
        ("/v1/completions", {"prompt": "a", "bad_words": [[1] * 5000]}, "bad_words", "4096"),
        ("/v1/completions", {"prompt": "a" * 300_000}, "prompt", "262144"),
        ("/v1/completions", {"prompt": ["a"] * 10, "n": 64}, "prompt", "640"),
        ("/v1/completions", {"prompt": "a", "user": "v" * 257}, "user", "256"),
        ("/v1/completions", {"prompt": "a", "user": "\ud800"}, "user", "ud800"),
        ("/v1/completions", {"prompt": "a", "cache_salt": "v" * 257}, "cache_salt", "256"),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": [1] * 65_537}, "stop_token_ids", "65536"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"1": 1, "01": 1}}, "logit_bias", "token ids"),
        ("/v1/completions", {"prompt": "a", **{f"x{i}": 1 for i in range(300)}}, None, "256"),
        ("/v1/completions", {"prompt": "a", "cache_salt": 3}, "cache_salt", "3"),
        ("/v1/completions", {"prompt": "a", "stream_options": {}}, "stream_options", "stream=true"),
        ("/v1/completions", {"prompt": "a", "use_beam_search": True, "n": 33}, "n", "32"),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "("}}, "regex", "regex"),
        ("/v1/chat/completions", {"messages": "hi"}, "messages", "list"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages", "content"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, "messages", "role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages", "text"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "store": True},
         "store", "stored"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2},
         "top_logprobs", "logprobs=true"),
        ("/v1/chat/completions",
         {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "max_completion_tokens": 4},
         "max_completion_tokens", "3"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 300_000}]},
         "messages", "262144"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 4097}, "messages", "4096"),
        ("/v1/chat/completions",
         {"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"messages": []}},
         "chat_template_kwargs", "messages"),
        ("/tokenize", {}, "prompt", "either"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools", "messages"),
        ("/tokenize", {"prompt": "a" * 300_000}, "prompt", "262144"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "-1"),
    ],
)  # fmt: skip
def test_bad_bodies_are_the_clients_fault(
    http: httpx.Client, path: str, body: dict[str, Any], param: str | None, says: str
):
    error = refused(http.post(path, content=json.dumps(body), headers=JSON), 400)
    assert error["param"] == param
    assert says in error["message"]


def test_neutral_values_of_what_is_not_supported_are_fine(http: httpx.Client):
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 1,
        "store": False,
        "metadata": None,
        "modalities": ["text"],
        "service_tier": "auto",
        "audio": None,
        "user": "someone",
        "prompt_cache_key": "k",
    }
    assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_broken_json_and_other_types(http: httpx.Client):
    path = "/v1/completions"
    assert refused(http.post(path, content="{", headers=JSON), 400)["code"] == "invalid_json"
    deep = refused(http.post(path, content="[" * 100_000, headers=JSON), 400)
    assert deep["code"] == "invalid_json"
    refused(http.post(path, content='"text"', headers=JSON), 400)
    refused(http.post(path, content=b"\xff\xfe", headers=JSON), 400)
    refused(http.post(path, content="prompt=a", headers={"content-type": "text/plain"}), 415)
    refused(http.post(path, data={"prompt": "a"}), 415)
    refused(http.post(path, json={"prompt": "a"}, headers={"content-encoding": "gzip"}), 415)
    refused(http.post(f"{path}/", json={"prompt": "a"}), 404)
    refused(http.get("/v1/memory/requests/" + "1" * 5000), 404)
    assert http.head("/health").status_code == http.head("/ready").status_code == 200
    assert refused(http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert refused(http.get(path), 405)["code"] == "method_not_allowed"


def test_every_answer_has_an_id(http: httpx.Client):
    assert http.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    own = http.get("/health", headers={"x-request-id": "x" * 200}).headers["x-request-id"]
    assert own.isalnum()
    assert own != http.get("/v1/nothing").headers["x-request-id"]


def test_host_names_of_others_are_refused(http: httpx.Client):
    assert refused(http.get("/v1/models", headers={"host": "evil.example"}), 403)["code"] == "host"
    for host in ("localhost", "127.0.0.1:8000", "[::1]:8000"):
        assert http.get("/v1/models", headers={"host": host}).status_code == 200


def test_no_other_origin_is_let_in(http: httpx.Client):
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    answer = http.options("/v1/completions", headers=asked)
    assert "access-control-allow-origin" not in answer.headers
    assert "access-control-allow-origin" not in http.get("/v1/models", headers=asked).headers


def test_a_body_that_is_too_large(launch_server: Launch):
    small = launch_server("--max-body-size", "4KiB")
    with small.http() as http:
        body = json.dumps({"prompt": "a" * 5000})
        error = refused(http.post("/v1/completions", content=body, headers=JSON), 413)
        assert error["code"] == "body_too_large"

        def pieces():  # of no declared length
            for _ in range(100):
                yield b" " * 100

        refused(http.post("/v1/completions", content=pieces(), headers=JSON), 413)
        assert http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code == 200
    small.stop()


def test_keys(launch_server: Launch):
    guarded = launch_server(
        "--api-key", "sesame", "--api-key", "second", "--cors-origin", "https://page.example"
    )
    with guarded.http() as http:
        for path in ("/v1/models", "/v1/memory", "/metrics", "/openapi.json"):
            error = refused(http.get(path), 401)
            assert error["code"] == "invalid_api_key"
            assert "sesame" not in error["message"]
        for header in ("Bearer wrong", "Bearer", "sesame", "Basic sesame", "Bearer sesam", "Bearer sesame1"):
            refused(http.get("/v1/models", headers={"authorization": header}), 401)
        for header in ("Bearer sesame", "bearer second"):
            assert http.get("/v1/models", headers={"authorization": header}).status_code == 200
        assert http.get("/v1/models", headers={"x-api-key": "sesame"}).status_code == 200
        refused(http.post("/v1/completions", json={"prompt": "a"}), 401)
        for path in ("/health", "/ready", "/version", "/"):
            assert http.get(path).status_code == 200
        asked = {
            "origin": "https://page.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type,authorization,x-stainless-os",
        }
        allowed = http.options("/v1/completions", headers=asked)
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    assert guarded.stop() == 0
    log = guarded.log_text()
    assert "sesame" not in log


def test_prompts_stay_out_of_the_log(launch_server: Launch):
    secret = "my dearest secret"
    for options, is_logged in (((), False), (("--log-prompts",), True)):
        one = launch_server(*options)
        with one.http() as http:
            body = {"prompt": secret, "max_tokens": 2, "temperature": -1}
            refused(http.post("/v1/completions", json=body), 400)
            assert http.post("/v1/completions", json={"prompt": secret, "max_tokens": 2}).status_code == 200
        one.stop()
        assert (secret in one.log_text()) is is_logged


def test_tokens_there_and_back(http: httpx.Client):
    for text in ("The capital", "naïve façade", "你好，世界", "😀🚀", " a\n\tb "):
        found = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
        assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
        assert found["max_model_len"] == 8192
        assert http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}


def test_prompt_tokens_are_those_of_the_template(http: httpx.Client):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 你好 😀"}]
    count = http.post("/tokenize", json={"messages": messages}).json()["count"]
    answer = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).json()
    assert answer["usage"]["prompt_tokens"] == count


@pytest.mark.parametrize(
    "text", ["😀👩‍👩‍👧🚀🇩🇪", "漢字かな交じり文、你好世界。한국어", "é́ñ𝔘𝔫𝔦 Ωμέγα", "עברית العربية हिन्दी"]
)
def test_streams_of_every_script_join_exactly(http: httpx.Client, text: str):
    ask: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Say it."}],
        "structured_outputs": {"choice": [text]},
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }
    whole = http.post("/v1/chat/completions", json=ask).json()["choices"][0]
    assert whole["message"]["content"] == text
    assert bytes(b for e in whole["logprobs"]["content"][:-1] for b in e["bytes"]).decode() == text
    with http.stream("POST", "/v1/chat/completions", json={**ask, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_one_bad_request_harms_no_other(server: Server):
    with server.http() as http:
        ask = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        alone = http.post("/v1/completions", json=ask).json()["choices"][0]["text"]
        with http.stream("POST", "/v1/completions", json={**ask, "stream": True}) as response:
            lines = response.iter_lines()
            text = json.loads(next(lines).removeprefix("data: "))["choices"][0]["text"]
            for bad in ({"prompt": [99999]}, {"prompt": "a " * 9000}, {"prompt": "a", "stop": [""]}):
                refused(http.post("/v1/completions", json=bad), 400)
            for line in lines:
                if line and line != "data: [DONE]":
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
        assert text == alone


def test_the_port_is_taken(server: Server, launch_server: Launch):
    port = server.url.rsplit(":", 1)[1]
    with pytest.raises(AssertionError, match=f"(?s)cannot listen on 127.0.0.1:{port}"):
        launch_server("--port", port)


def test_half_a_request_and_silence_do_no_harm(server: Server):
    host, port = server.url.removeprefix("http://").split(":")
    for sent in (b"", b"POST /v1/completions HTTP/1.1\r\n", b"\x00\xff garbage\r\n\r\n"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(sent)
    with server.http() as http:
        assert http.get("/ready").json() == {"status": "ready"}


def test_a_schema_that_is_too_much_work_is_the_clients_fault(http: httpx.Client):
    kinds = [
        {f"k{j}": {"type": "integer", "minimum": i, "maximum": 10**9 + j} for j in range(10)}
        for i in range(150)
    ]
    schema = {"anyOf": [{"type": "object", "properties": properties} for properties in kinds]}
    (empty,) = http.post("/tokenize", json={"prompt": "{}"}).json()["tokens"]
    asked = {
        "messages": [{"role": "user", "content": "Go."}],
        "structured_outputs": {"json": schema},
        "temperature": 0,
        "logit_bias": {str(empty): -100},  # an object with nothing in it would be easy
        "max_tokens": 20,
    }
    error = refused(http.post("/v1/chat/completions", json=asked), 400)
    assert "grammar" in error["message"]


def test_hosts_and_origins_are_as_they_are_written(launch_server: Launch):
    one = launch_server("--allowed-host", "Proxy.Example:8443")
    with one.http() as http:
        for host in ("proxy.example", "PROXY.example:9"):
            assert http.get("/ready", headers={"host": host}).status_code == 200
        refused(http.get("/ready", headers={"host": "proxy.example.org"}), 403)
    one.stop()
