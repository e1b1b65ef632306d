"""Commands of the chat: instructions, settings, saving and loading, lines that go on."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest

from octavo.cli.chat import Session
from octavo.cli.conversation import Conversation
from octavo.core.errors import InvalidRequest
from octavo.core.sampling import SamplingParams

BRIEF = ("--max-tokens", 24, "--temperature", 0, "--kv-memory", "64MiB")


@pytest.fixture
def talk(run, smollm2_path, monkeypatch):
    """A chat whose lines come from a pipe."""

    def talk(*lines: str, status: int = 0):
        monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines) + "\n"))
        found, out, err = run("chat", "--model", smollm2_path, *BRIEF)
        assert found == status, err
        return out, err

    return talk


def test_instructions_change_the_answer_and_go_again(talk):
    question = "Who are you?"
    plain = talk(question)[0]
    out, err = talk("/system You are a pirate. Talk like one.", question)
    assert "The model has new instructions." in err
    assert out != plain
    out, err = talk("/system You are a pirate.", "/system", question)
    assert "The model has no instructions." in err
    assert out == plain


def test_settings(talk):
    out, err = talk("/set max_tokens 3", "/set seed 7", "/set seed none", "/set", "Count to ten.")
    notes = err.splitlines()
    assert notes[:3] == ["max_tokens 3", "seed 7", "seed None"]
    assert "temperature 0.0" in notes
    assert "max_tokens 3" in notes[3:]
    assert len(out.split()) <= 3
    assert talk("/set max-tokens 5")[1] == "max_tokens 5\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("/set colour 3", "unknown setting 'colour'; known are temperature, top_k"),
        ("/set temperature hot", "temperature='hot': must be a number from 0 to 1e6"),
        ("/set temperature", "temperature='': must be a number"),
        ("/set temperature none", "temperature=None: must be a number"),
        ("/set top_k [1]", "top_k=[1]: must be an integer"),
        ("/set stop 1", "unknown setting 'stop'"),
        ("/save", "name a file, e.g. /save chat.json"),
        ("/load", "name a file"),
        ("/load no-such-file", "cannot read no-such-file: No such file or directory"),
        ("/save no-such-directory/file", "cannot write no-such-directory/file: No such file or directory"),
    ],
)
def test_a_command_that_fails_in_a_pipe_ends_it(talk, command, message):
    out, err = talk(command, "Hi", status=1)
    assert out == ""
    assert err.startswith(f"octavo: {message}")


def test_save_and_load(talk, tmp_path):
    file = tmp_path / "chat.json"
    first, second = "My name is Bob.", "What is my name?"
    whole = talk("/system Be brief.", first, second)[0]
    begun, err = talk("/system Be brief.", first, f"/save {file}")
    assert "Saved 2 messages." in err
    saved = json.loads(file.read_text())
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    assert saved["settings"]["max_tokens"] == 24
    rest, err = talk("/set temperature 1", f"/load {file}", second)
    assert "Loaded 2 messages." in err
    assert begun + rest == whole


def test_statistics(talk):
    err = talk("Hi", "/stats")[1]
    assert "2,896 tokens in 181 blocks of 16 (64.0 MiB), sequences up to 2,896" in err
    assert "181 KV blocks: 0 used by 0 requests" in err


def test_a_line_that_ends_in_a_backslash_goes_on(talk, tmp_path):
    file = tmp_path / "chat.json"
    talk("one\\", "  two\\", "", f"/save {file}")
    assert json.loads(file.read_text())["messages"][0] == {"role": "user", "content": "one\n  two"}
    talk("the last\\", f"/save {file}", "/exit")  # what looks like a command is a part of the message
    assert json.loads(file.read_text())["messages"][0]["content"] == "one\n  two"


def test_the_end_of_input_ends_a_message_too(run, smollm2_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is the capital of France?\\"))
    status, out, _ = run("chat", "--model", smollm2_path, *BRIEF)
    assert (status, bool(out.strip())) == (0, True)


def test_ctrl_c_drops_all_lines_of_a_message(monkeypatch, usual_ctrl_c):
    lines = iter(["first\\", None, "second"])

    def typed(_: str = "") -> str:
        line = next(lines)
        if line is None:
            signal.raise_signal(signal.SIGINT)
        return line

    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    session = Session(None, SamplingParams(), None)
    assert session._read() == ""
    assert session._read() == "second"


def test_a_person_may_go_on_after_a_mistake(smollm2_path):
    controller, terminal = os.openpty()
    command = [sys.executable, "-m", "octavo", "chat", "--model", smollm2_path, *map(str, BRIEF)]
    with subprocess.Popen(
        command,
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TERM": "dumb"},
    ) as process:
        os.write(controller, b"/load nowhere\n/set temperature cold\nWhat is the capital of France?\n/exit\n")
        out, err = process.communicate(timeout=60)
    os.close(terminal)
    os.close(controller)
    assert process.returncode == 0
    assert "cannot read nowhere" in err
    assert "temperature='cold'" in err
    assert out.replace(">", "").strip()  # the question after them was answered


# Files of conversations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("3", "expected a list of messages"),
        ("{}", 'expected a list of messages, or an object with "messages"'),
        ('[{"role": "wizard", "content": "x"}]', "message 0: expected a role of system, user, assistant"),
        ('[{"role": "user", "content": [1]}]', "message 0: expected"),
        (
            '[{"role": "user", "content": "a"}, {"role": "system", "content": "x"}]',
            "message 1: expected a role",
        ),
        ("[3]", "message 0: expected"),
        ('{"messages": [], "settings": {"colour": 1}}', '"settings" must be an object of temperature'),
        ('{"messages": [], "settings": 1}', '"settings" must be an object'),
        ('{"messages": [], "settings": {"temperature": -1}}', "temperature=-1: must be"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_file_that_is_no_conversation_changes_nothing(tmp_path, text, message):
    file = tmp_path / "chat.json"
    file.write_text(text)
    conversation = Conversation(SamplingParams(), "Be brief.", [{"role": "user", "content": "Hi"}])
    with pytest.raises(InvalidRequest) as error:
        conversation.load(file)
    assert message in str(error.value)
    assert conversation == Conversation(SamplingParams(), "Be brief.", [{"role": "user", "content": "Hi"}])


def test_a_list_of_messages_is_a_conversation(tmp_path):
    file = tmp_path / "chat.json"
    file.write_text(
        '[{"role": "system", "content": "s"}, {"role": "user", "content": "\\u00fc", "name": "x"}]'
    )
    conversation = Conversation(SamplingParams(temperature=0.5))
    conversation.load(file)
    assert conversation == Conversation(
        SamplingParams(temperature=0.5), "s", [{"role": "user", "content": "ü"}]
    )
    conversation.save(file)
    again = Conversation(SamplingParams())
    again.load(file)
    assert (again.prompt, again.params.temperature) == (conversation.prompt, 0.5)
