"""The command line, run in this process."""

import io
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from octavo import LLM, SamplingParams
from octavo.cli.chat import Session
from octavo.cli.terminal import visible
from octavo.scheduling.step import StepResult


@pytest.fixture
def model(smollm2_path):
    return ("--model", smollm2_path, "--kv-memory", "64MiB")


def test_version_and_help(run):
    status, out, _ = run("--version")
    assert status == 0
    assert out.startswith("octavo ")
    for command in ("serve", "generate", "chat", "models", "plan", "info", "bench"):
        status, out, _ = run(command, "--help")
        assert (status, command in out) == (0, True)


def test_generate_prints_text_and_a_summary(run, model):
    status, out, err = run("generate", "The capital of France is", "Once upon", "--max-tokens", 8, *model)
    assert (status, err) == (0, "")
    assert "The capital of France is Paris" in out
    assert "2 prompts" in out
    for word in ("tokens/s", "Time to first token", "KV blocks of 16 tokens", "Instruction set"):
        assert word in out


def test_generate_json(run, model, smollm2_path):
    status, out, err = run("generate", "The capital of France is", "a", "--max-tokens", 6, "--json", *model)
    assert (status, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [set(line) for line in lines] == [
        {"prompt_token_ids", "token_ids", "text", "finish_reason", "num_cached_tokens"}
    ] * 2
    with LLM(smollm2_path, kv_memory="16MiB") as llm:
        expected = llm.generate(
            ["The capital of France is", "a"], SamplingParams(max_tokens=6, temperature=0)
        )
    assert [line["token_ids"] for line in lines] == [o.outputs[0].token_ids for o in expected]
    assert [line["text"] for line in lines] == [o.outputs[0].text for o in expected]
    assert [line["prompt_token_ids"] for line in lines] == [o.prompt_token_ids for o in expected]


def test_generate_from_a_file(run, model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hi", "max_tokens": 2, "ignore_eos": true}\n\n{"prompt": [1, 2, 3]}\n')
    status, out, _ = run(
        "generate", "first", "--file", file, "--max-tokens", 3, "--ignore-eos", "--json", *model
    )
    assert status == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert [len(line["token_ids"]) for line in lines] == [3, 2, 3]
    assert lines[2]["prompt_token_ids"] == [1, 2, 3]


def test_only_a_newline_ends_a_line_of_json(run, model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    separators = "a\u2028b\u2029c\u0085d"
    file.write_bytes(f'\ufeff{{"prompt": "{separators}", "max_tokens": 1}}\r\n{{"prompt": [1]}}'.encode())
    status, out, err = run("generate", "--file", file, "--max-tokens", 1, "--json", *model)
    assert (status, err) == (0, "")
    with LLM(model[1], kv_memory="16MiB") as llm:
        expected = llm.tokenizer.encode(separators)
    assert [json.loads(line)["prompt_token_ids"] for line in out.split("\n")[:-1]] == [expected, [1]]


def test_generate_from_standard_input(run, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"prompt": "Hi"}\n'))
    status, out, _ = run("generate", "--file", "-", "--max-tokens", 2, "--json", *model)
    assert status == 0
    assert len(out.splitlines()) == 1


def test_generate_as_chat(run, model):
    question = "What is the capital of France? Answer in one word."
    status, out, _ = run("generate", question, "--chat", "--json", *model)
    assert status == 0
    assert "Paris" in json.loads(out)["text"]
    assert json.loads(out)["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "line 2: not JSON"),
        ("[1]", 'line 2: expected an object with "prompt"'),
        ('{"max_tokens": 5}', 'line 2: expected an object with "prompt"'),
        ('{"prompt": ""}', 'line 2: "prompt" must be'),
        ('{"prompt": 7}', 'line 2: "prompt" must be'),
        ('{"prompt": "a", "max_token": 5}', "line 2: unknown parameter 'max_token'"),
        ('{"prompt": "a", "max_tokens": 0}', "line 2: max_tokens=0: must be an integer, at least 1"),
        ("[" * 100_000, "line 2: not JSON"),
        ('{"prompt": "a", "n": true}', "line 2: n=True: must be an integer, from 1 to 64"),
        ('{"prompt": "a", "temperature": 1' + "0" * 400 + "}", "line 2: temperature=1000"),
        (
            '{"prompt": "a", "use_beam_search": true, "n": 33}',
            "line 2: n=33: must be at most 32 with use_beam_search",
        ),
        (
            '{"prompt": "a", "structured_outputs": {"regexp": "a"}}',
            "line 2: structured_outputs={'regexp': 'a'}: must be made of known fields; given: regexp",
        ),
    ],
)
def test_a_bad_line_is_named(run, tmp_path, line, message):
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"prompt": "fine"}}\n{line}\n')
    status, out, err = run("generate", "--file", file)  # refused before any model is looked for
    assert (status, out) == (1, "")
    assert err.startswith("octavo: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("generate", "hi", "--model", "no-such-model"), 1, "octavo: no model 'no-such-model'"),
        (
            ("generate", "hi", "--temperature", "-1"),
            1,
            "octavo: temperature=-1.0: must be a number from 0 to 1e6",
        ),
        (("generate", "hi", "--file", "nowhere.jsonl"), 1, "octavo: cannot read nowhere.jsonl"),
        (("generate",), 2, "at least one prompt"),
        (("generate", "hi", "--max-tokens", "many"), 2, "--max-tokens"),
        (("generate", "hi", "--frobnicate"), 2, "frobnicate"),
        (("frobnicate",), 2, "frobnicate"),
        (("models", "info", "no-such-model"), 1, "octavo: no model 'no-such-model'"),
        (("models", "pull", "no-such-model"), 1, "octavo: no model 'no-such-model'"),
    ],
)
def test_errors_are_short_and_have_a_status(run, arguments, status, message):
    found, out, err = run(*arguments)
    assert (found, out) == (status, "")
    assert message in err


def test_errors_that_need_the_model(run, model):
    cases = [
        (
            ("--kv-dtype", "int4"),
            "octavo: kv_dtype='int4': choose one of auto, bfloat16, float16, float32, int8",
        ),
        (("--threads", 99999999999), "octavo: threads=99999999999: must be from 1 to "),
        (("--max-num-seqs", 10**12), "octavo: max_num_seqs=1000000000000: must be at most 65536"),
        (("--kv-memory", "0"), "octavo: kv_memory='0': must be at least 1 byte"),
        (("--block-size", 10), "octavo: block_size=10: must be a multiple of 8"),
        (("--max-context", 20), "octavo: prompt 0: the prompt has 41 tokens; at most 19 leave room"),
    ]
    for extra, message in cases:
        status, out, err = run("generate", "word " * 40, *model, *extra)
        assert (status, out) == (1, "")
        assert err.startswith(message), err


def test_info(run):
    status, out, _ = run("info", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["cores"] >= 1
    assert found["isa"] in found["available_isas"]
    assert 0 < found["memory_available_bytes"] <= found["memory_total_bytes"]
    assert found["bandwidth_gb_s"] > 0
    status, out, _ = run("info")
    assert (status, found["isa"] in out) == (0, True)


def test_models(run, smollm2_path):
    status, out, _ = run("models", "info", smollm2_path, "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["family"], found["num_layers"], found["vocab_size"]) == ("llama", 30, 49152)
    assert found["kv_bytes_per_token"] == {
        "bfloat16": 23040,
        "float16": 23040,
        "float32": 46080,
        "int8": 12240,
    }
    assert found["weight_bytes"] == sum(entry["num_bytes"] for entry in found["encodings"].values())
    status, out, _ = run("models", "info", smollm2_path)
    assert (status, "30 layers" in out) == (0, True)
    status, out, _ = run("models", "pull", smollm2_path)
    assert (status, out.strip()) == (0, str(smollm2_path))
    status, out, _ = run("models", "list", "--json")
    assert (status, "smollm2" in json.loads(out)["short_names"]) == (0, True)
    status, out, _ = run("models", "list")
    assert (status, "smollm2" in out) == (0, True)


def test_chat_reads_lines_from_a_pipe(run, model, monkeypatch):
    lines = [
        "My name is Bob.",
        "",
        "/help",
        "What is the capital of France?",
        "/reset",
        "/nonsense",
        "Hi",
        "/exit",
        "x",
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    status, out, err = run("chat", "--max-tokens", 24, "--temperature", 0, *model)
    assert status == 0
    answers = out.splitlines()
    assert len(answers) >= 3
    assert "Paris" in out
    for note in ("/reset", "The conversation begins anew.", "unknown command /nonsense"):
        assert note in err


def test_chat_ends_with_its_input(run, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run("chat", *model) == (0, "", "")


def test_chat_with_a_conversation_that_is_too_long(run, model, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("word " * 100 + "\nHi\n"))
    status, out, err = run("chat", "--max-context", 64, "--max-tokens", 5, "--temperature", 0, *model)
    assert status == 1
    assert "leave room for one new token" in err
    assert err.endswith("octavo: messages that got no answer, or not all of it: 1\n")
    assert len(out.strip()) > 0  # the second message was answered


def test_ctrl_c_stops_the_answer_not_the_chat(smollm2_path, monkeypatch, capsys, usual_ctrl_c):
    with LLM(smollm2_path, kv_memory="32MiB", max_num_seqs=1) as llm:
        step = llm.engine.step
        steps = []

        def step_with_interrupt() -> int:
            steps.append(None)
            if len(steps) == 5:
                signal.raise_signal(signal.SIGINT)  # arrives inside a step, which still completes
            return step()

        monkeypatch.setattr(llm.engine, "step", step_with_interrupt)
        monkeypatch.setattr(
            sys, "stdin", io.StringIO("Count to one hundred.\nWhat is the capital of France?\n")
        )
        session = Session(llm, SamplingParams(max_tokens=30, temperature=0), None)
        session.run()
        llm.engine.check_invariants()
    out = capsys.readouterr().out
    assert len(steps) > 5
    assert "Paris" in out
    roles = [message["role"] for message in session.conversation.messages]
    assert roles == ["user", "assistant"] * 2


def test_log_probabilities_of_a_line_are_printed(run, model, tmp_path):
    file = tmp_path / "prompts.jsonl"
    line = {"prompt": "The capital of France is", "max_tokens": 3, "logprobs": 2, "logit_bias": {"7042": 100}}
    file.write_text(json.dumps({**line, "temperature": 0}) + "\n")
    status, out, _ = run("generate", "--file", file, "--json", *model)
    assert status == 0
    found = json.loads(out)
    assert found["token_ids"] == [7042] * 3
    entries = [entry["7042"] for entry in found["logprobs"]]
    assert found["cumulative_logprob"] == pytest.approx(sum(entry["logprob"] for entry in entries))
    assert {entry["decoded_token"] for entry in entries} == {" Paris"}
    assert entries[0]["rank"] == 1
    assert [len(entry) for entry in found["logprobs"]] == [2 + (entry["rank"] > 2) for entry in entries]


def test_a_failed_prompt_gives_status_1_and_the_others_their_text(run, model, monkeypatch):
    def fail_one(logits, largest, rows, positions, state, **_):
        return StepResult(largest, {i: "no logits" for i, row in enumerate(rows) if row == 1})

    monkeypatch.setattr("octavo.engine.runner.sampler", SimpleNamespace(sample=fail_one))
    status, out, err = run("generate", "a", "b", "c", "--max-tokens", 3, "--json", *model)
    assert (status, err) == (1, "octavo: prompt 1: no logits\n")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["finish_reason"] for line in lines] == ["length", "error", "length"]
    assert lines[1]["error"] == "no logits"


def test_bench_paging(run):
    status, out, _ = run("bench", "paging", "--quick", "--json")
    assert status == 0
    assert json.loads(out)["step_us_64"] > 0


def test_an_unknown_instruction_set_is_refused(smollm2_path):
    for arguments in (["info"], ["generate", "hi", "--model", str(smollm2_path)]):
        result = subprocess.run(
            [sys.executable, "-m", "octavo", *arguments],
            env={**os.environ, "OCTAVO_ISA": "mmx"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("octavo: ")
        assert "mmx" in result.stderr


@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        ("generate hi --max-tokens 1 --json >/dev/full", "No space left on device"),
        ("generate hi --max-tokens 1 >/dev/full", "No space left on device"),
        ("generate hi --max-tokens 1 --json >&-", "standard output is closed"),
        ("generate --file - <&-", "cannot read standard input: it is closed"),
        ("chat <&-", "standard input is closed"),
    ],
)
def test_streams_that_cannot_be_used(smollm2_path, redirection, message):
    command = f'"{sys.executable}" -m octavo {redirection} '
    if "--file" not in redirection:
        command += f'--model "{smollm2_path}" --kv-memory 16MiB'
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    lines = result.stderr.splitlines()
    assert (result.returncode, result.stdout, len(lines)) == (1, "", 1)
    assert lines[0].startswith("octavo: ")
    assert message in lines[0]


def test_a_terminal_is_not_commanded():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    text = "a\x1b[2Jb\r\x07\x9b\x7f\n\tä"
    assert visible(text, Terminal()) == "a\\x1b[2Jb\\x0d\\x07\\x9b\\x7f\n\tä"
    assert visible(text, io.StringIO()) == text


def test_no_command_writes_control_characters_to_a_terminal(smollm2_path):
    for command, said in (["generate", "\x1b[2Jhi"], b""), (["chat", "--temperature", "0"], b"Hi\n"):
        controller, terminal = os.openpty()
        arguments = [*command, "--max-tokens", "1", "--model", str(smollm2_path), "--kv-memory", "16MiB"]
        process = subprocess.run(
            [sys.executable, "-c", _FORGED, *arguments],
            input=said,
            stdout=terminal,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "dumb"},
            check=False,
            timeout=60,
        )
        os.close(terminal)
        shown = os.read(controller, 1 << 16)
        os.close(controller)
        assert process.returncode == 0, process.stderr
        assert b"\\x1b]0;owned\\x07" in shown
        assert b"\x1b]" not in shown
        assert b"\x1b[2J" not in shown


# A model whose every token is a command to the terminal.
_FORGED = """
import sys
from octavo.cli import main
from octavo.text.tokenizer import Tokenizer
Tokenizer.visible_bytes = lambda self, token_id, *, skip_special=True: b"\\x1b]0;owned\\x07"
main(sys.argv[1:])
"""
