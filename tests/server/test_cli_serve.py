"""``octavo serve`` as a command: what its options become, what it says, and how it ends."""

import contextlib
import functools
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from octavo.cli import app, starting
from octavo.core.config import EngineConfig
from octavo.core.errors import OctavoError
from octavo.server.settings import ServerSettings

URL = "http://127.0.0.1:1234"


@pytest.fixture
def served(monkeypatch):
    """What the server is called with, in place of serving."""
    calls: list[dict[str, Any]] = []

    def serve(llm, settings, *, on_ready):
        calls.append({"settings": settings, "config": llm.config, "capacity": llm.capacity})
        on_ready(URL)

    monkeypatch.setattr("octavo.server.serving.serve", serve)
    yield calls
    logging.getLogger("octavo").handlers = []


@pytest.fixture
def options(smollm2_path):
    return ("--model", smollm2_path, "--kv-memory", "64MiB", "--port", 0)


def test_without_options(run, served, smollm2_path):
    status, out, _ = run("serve", "--port", 0)
    assert (status, out) == (0, "")
    (call,) = served
    assert call["settings"] == ServerSettings(port=0, model_name="smollm2")
    assert call["config"] == EngineConfig(max_waiting=256)


def test_every_option_arrives(run, served, options, tmp_path, smollm2_path):
    keys = tmp_path / "keys.txt"
    keys.write_text("# who may\n\n  second \nthird\n")
    status, _, _ = run(
        *("serve", "--model", smollm2_path, "--host", "localhost", "--port", 0, "--api-key", "first"),
        *("--api-key-file", keys, "--model-name", "mine", "--allowed-host", "a.example"),
        *("--cors-origin", "https://a.example", "--cors-origin", "https://b.example"),
        *("--max-body-size", "2MiB", "--max-prompts", 3, "--drain-timeout", 1.5, "--log-prompts"),
        *("--no-show-tokens", "--tool-parser", "hermes", "--reasoning-parser", "none"),
        *("--metrics-prefix", "vllm", "--block-size", 32, "--kv-memory", "64MiB", "--kv-dtype", "int8"),
        *("--activations", "float32", "--threads", 1, "--max-num-seqs", 5, "--max-step-tokens", 100),
        *("--max-chunk-tokens", 50, "--max-context", 300, "--no-prefix-cache", "--scheduling", "priority"),
        *("--max-waiting", 7, "--speculative", "ngram", "--max-drafts", 4, "--record", tmp_path / "log"),
    )
    assert status == 0
    (call,) = served
    assert call["settings"] == ServerSettings(
        host="localhost",
        port=0,
        api_keys=("first", "second", "third"),
        model_name="mine",
        allowed_hosts=("a.example",),
        cors_origins=("https://a.example", "https://b.example"),
        max_body_bytes=2 << 20,
        max_prompts=3,
        drain_timeout_s=1.5,
        log_prompts=True,
        show_tokens=False,
        tool_parser="hermes",
        reasoning_parser="none",
        metrics_prefix="vllm",
    )
    assert call["config"] == EngineConfig(
        block_size=32,
        kv_memory_bytes=64 << 20,
        kv_dtype="int8",
        activations="float32",
        threads=1,
        max_num_seqs=5,
        max_step_tokens=100,
        max_chunk_tokens=50,
        max_context=300,
        prefix_cache=False,
        scheduling="priority",
        max_waiting=7,
        speculative="ngram",
        max_drafts=4,
        record=str(tmp_path / "log"),
    )


def test_every_setting_has_an_option():
    """What is added to the settings of server or engine must not be forgotten here."""
    command = typer.main.get_command(app).commands["serve"]
    options = {name.removeprefix("--") for parameter in command.params for name in parameter.opts}
    renamed = {
        "api_keys": "api_key",
        "allowed_hosts": "allowed_host",
        "cors_origins": "cors_origin",
        "max_body_bytes": "max_body_size",
        "drain_timeout_s": "drain_timeout",
        "kv_memory_bytes": "kv_memory",
    }
    settings = {*ServerSettings.__dataclass_fields__, *EngineConfig.__dataclass_fields__} - {"backend"}
    assert {renamed.get(name, name).replace("_", "-") for name in settings} <= options


def test_no_limit_to_those_who_wait(run, served, options):
    assert run("serve", *options, "--max-waiting", 0)[0] == 0
    assert served[0]["config"].max_waiting is None


def test_a_model_is_called_by_what_it_is(run, served, options, tmp_path, smollm2_path):
    link = tmp_path / "My-Model.gguf"
    link.symlink_to(smollm2_path)
    for given in (str(smollm2_path), str(link)):
        assert run("serve", *options, "--model", given)[0] == 0
    assert run("serve", str(link), *options)[0] == 0
    link_name = link.stem
    assert [call["settings"].model_name for call in served] == [smollm2_path.stem, link_name, link_name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", 70000), "port=70000: must be from 0 to 65535"),
        (("--kv-dtype", "int5"), "kv_dtype='int5': choose one of auto"),
        (("--kv-memory", "much"), "kv_memory='much': not a size"),
        (("--max-body-size", "1"), "max_body_bytes=1: must be at least 1024"),
        (("--max-body-size", "big"), "max_body_size='big': not a size in bytes"),
        (("--tool-parser", "xml"), "tool_parser='xml': must be one of auto, hermes, llama3, none"),
        (("--api-key", "a b"), "api_key: must be printable ASCII without spaces, not empty"),
        (("--api-key-file", "no-such-file"), "api_key_file: cannot read no-such-file"),
        (("--max-step-tokens", 0), "max_step_tokens=0: must be an integer, at least 1"),
        (("--block-size", "x"), "block_size='x': write one number"),
        (("--host", "no-such-host.invalid"), "cannot listen on no-such-host.invalid:0"),
    ],
)
def test_options_are_checked_before_a_model_is_looked_for(run, served, arguments, message):
    status, out, err = run("serve", "--model", "no-such-model", "--port", 0, *arguments)
    assert (status, out, served) == (1, "", [])
    assert message in err
    assert "no-such-model" not in err.replace("serves no-such-model", "")


def test_a_file_without_keys_is_no_open_door(run, served, tmp_path):
    for text in ("", "\n\n", "# none yet\n"):
        (tmp_path / "keys").write_text(text)
        status, _, err = run("serve", "--model", "none", "--api-key-file", tmp_path / "keys")
        assert (status, served) == (1, [])
        assert f"{tmp_path}/keys has no keys; write one in each line" in err


def test_a_taken_port_is_told_before_the_model_is_looked_for(run, served):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, out, err = run("serve", "--model", "no-such-model", "--port", port)
    assert (status, out, served) == (1, "", [])
    assert f"octavo: cannot listen on 127.0.0.1:{port}: Address already in use" in err


def test_the_lines_of_the_start(run, served, options, smollm2_path):
    status, out, err = run("serve", *options, "--model-name", "small")
    assert (status, out) == (0, "")
    for text in (
        "serves small",
        f"llama, {smollm2_path}",
        "Weights   92.1 MiB",
        "64.0 MiB: 181 blocks of 16 tokens, 22.5 KiB per token as bfloat16",
        "2,896 tokens: 1 sequence of 2,896 (the KV pool holds 2896 tokens; give it more kv_memory)",
        "64 sequences at once, 256 waiting, 512 tokens per step",
        f"Page      {URL}/\n",
        f"API       {URL}/v1",
    ):
        assert text in err
    assert re.search(r"Compute   \w+, \d+ threads?\n", err)
    assert re.search(r"Ready in \d+\.\d\d s\.", err)
    assert "warning" not in err


def test_the_line_of_json(run, served, options, smollm2_path):
    status, out, err = run("serve", *options, "--json")
    assert (status, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    capacity = served[0]["capacity"]
    assert found["url"] == URL
    assert found["page"] == f"{URL}/"
    assert (found["model"], found["path"], found["family"]) == (
        smollm2_path.stem,
        str(smollm2_path),
        "llama",
    )
    assert found["weight_bytes"] == 96_576_768
    assert (found["kv_dtype"], found["kv_bytes_per_token"]) == ("bfloat16", 23040)
    assert (found["num_tokens"], found["num_blocks"]) == (capacity.num_tokens, capacity.num_blocks)
    assert found["kv_pool_bytes"] == capacity.num_bytes
    assert (found["max_num_seqs"], found["max_waiting"], found["needs_api_key"]) == (64, 256, False)
    assert found["start_s"] > 0


def test_a_name_cannot_command_the_terminal(run, served, options):
    err = run("serve", *options, "--model-name", "a\x1b[2Jb")[2]
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("host", "keys", "warns"),
    [
        ("127.0.0.1", (), False),
        ("::1", (), False),
        ("localhost", (), False),
        ("0.0.0.0", ("key",), False),
        ("0.0.0.0", (), True),
        ("::", (), True),
        ("192.168.1.5", (), True),
    ],
)
def test_strangers_without_a_key_are_warned_of(host, keys, warns):
    warning = starting.warning(ServerSettings(host=host, api_keys=keys))
    assert bool(warning) == warns
    if warns:
        assert host in warning
        assert "--api-key-file FILE" in warning
        assert "--host 127.0.0.1" in warning


def test_the_warning_is_given(run, served, options):
    err = run("serve", *options, "--host", "0.0.0.0", "--json")[2]
    assert err.startswith("octavo: warning: whoever reaches 0.0.0.0 can use this model, without a key.")


def test_a_configuration_file(run, served, options, tmp_path):
    file = tmp_path / "octavo.toml"
    file.write_text(
        """
        kv-dtype = "int8"
        max-num-seqs = 3
        [serve]
        api-key = ["one", "two"]
        max-num-seqs = 4
        show-tokens = false
        prefix-cache = false
        drain-timeout = 5
        max-body-size = 4096
        [chat]
        temperature = 0
        """
    )
    assert run("serve", *options, "--config", file, "--drain-timeout", 6)[0] == 0
    (call,) = served
    config, settings = call["config"], call["settings"]
    assert (config.kv_dtype, config.max_num_seqs, config.prefix_cache) == ("int8", 4, False)
    assert (settings.api_keys, settings.show_tokens) == (("one", "two"), False)
    assert (settings.drain_timeout_s, settings.max_body_bytes) == (6.0, 4096)


# The real process


get = functools.partial(httpx.get, timeout=60)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "octavo",
            "serve",
            "--port",
            "0",
            "--kv-memory",
            "32MiB",
            *map(str, arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_start_answer_stop(number, tmp_path):
    (tmp_path / "keys").write_text("sesame\n")
    with start("--json", "--api-key-file", tmp_path / "keys") as process:
        try:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            assert found["needs_api_key"]
            assert get(found["url"] + "/health").status_code == 200
            assert get(found["url"] + "/v1/models").status_code == 401
            headers = {"authorization": "Bearer sesame"}
            models = get(found["url"] + "/v1/models", headers=headers).json()
            assert models["data"][0]["id"] == found["model"] == "smollm2"
            for address in ("api", "docs"):
                assert found[address].startswith(found["url"])
            assert get(found["docs"], headers=headers).status_code == 200
        finally:
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert "sesame" not in err


def test_lines_for_people_and_a_port_that_is_taken():
    with start() as process:
        try:
            assert process.stderr is not None
            lines = [process.stderr.readline()]
            while not lines[-1].startswith("Ready in "):
                assert lines[-1], lines
                lines.append(process.stderr.readline())
            url = re.search(r"http://\S+?(?=/$)", "".join(lines), re.MULTILINE)[0]
            assert get(url + "/ready").json() == {"status": "ready"}
            with start("--port", url.rpartition(":")[2]) as second:
                out, err = second.communicate(timeout=60)
            assert (second.returncode, out) == (1, "")
            assert "Address already in use; --port 0 takes a free one" in err
        finally:
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")


def test_a_line_that_cannot_be_written_ends_the_server():
    command = f'"{sys.executable}" -m octavo serve --port 0 --kv-memory 32MiB --json >/dev/full'
    result = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.endswith("octavo: [Errno 28] No space left on device\n")


def listening_port(process: subprocess.Popen[bytes]) -> int | None:
    """The port that a process listens at, as Linux tells it."""
    held = set()
    for handle in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed just now
            held.add(os.readlink(handle))
    for line in Path(f"/proc/{process.pid}/net/tcp").read_text().splitlines()[1:]:
        _, address, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in held:
            return int(address.partition(":")[2], 16)
    return None


def test_nobody_has_to_read_the_start_up_lines():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "octavo", "serve", "--port", "0", "--kv-memory", "32MiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer) as process:
        os.close(writer)
        end = time.monotonic() + 60
        while (port := listening_port(process)) is None:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        assert get(f"http://127.0.0.1:{port}/health").status_code == 200
        process.terminate()
        assert process.wait(60) == 0


def test_an_error_of_the_server_is_one_line(run, options, monkeypatch):
    def serve(*_: object, **__: object) -> None:
        raise OctavoError("no more addresses")

    monkeypatch.setattr("octavo.server.serving.serve", serve)
    status, out, err = run("serve", *options, "--json")
    assert (status, out, err) == (1, "", "octavo: no more addresses\n")
