"""A command in a process of its own."""

import json
import sys

import pytest

from octavo.bench import separate


@pytest.fixture
def program(monkeypatch):
    """Sets what the new process runs in place of the command line."""
    return lambda text: monkeypatch.setattr(separate, "_PROGRAM", text)


def test_what_a_command_says_of_its_failure():
    found = separate.measure(["bench", "serve"])
    assert found["error"] == "octavo: name either the URL of a server, or a model to load here with --model"


REPORT = {name: name for name in separate._KEPT} | {
    "repeats": [{"requests": {"ok": 0, "failed": 2}}, {"requests": {"ok": 1, "failed": 1}}],
    "timeline": [1] * 100,
}


@pytest.mark.parametrize("status", [0, 1])
def test_a_report_is_one_whatever_the_status(program, status):
    program(f"import sys; print({json.dumps(REPORT)!r}); sys.exit({status})")
    found = separate.measure([])
    wall_s = found.pop("wall_s")
    assert found == {"error": None, "failed_requests": 3} | {name: name for name in separate._KEPT}
    assert wall_s > 0


@pytest.mark.parametrize(
    ("warnings", "why"), [(["All failed: busy.", "Another."], "All failed: busy."), ([], "there was none")]
)
def test_without_an_answer_nothing_is_measured(program, warnings, why):
    repeats = [{"requests": {"ok": 0, "failed": 2}}] * 2
    program(f"print({json.dumps(REPORT | {'repeats': repeats, 'warnings': warnings})!r})")
    found = separate.measure([])
    assert (set(found), found["error"]) == ({"wall_s", "error"}, f"no request was answered: {why}")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"error": None, "failed_requests": 0, "warnings": ["One repeat only."]}, None),
        ({"error": None, "failed_requests": 2, "warnings": ["2 of 4: busy."]}, "2 of 4: busy."),
        ({"error": None, "failed_requests": 2, "warnings": []}, "2 of its requests failed"),
        ({"error": "  where it was\noctavo: no memory"}, "no memory"),
    ],
)
def test_what_failed(found, why):
    assert separate.what_failed(found) == why


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import sys; sys.exit(3)", "status 3"),
        ("import os; os.kill(os.getpid(), 9)", "status -9"),
        ("print('no report')", "it gave no report"),
        ("print('[1]')", "it gave no report"),
        ("import sys; print('why', file=sys.stderr); sys.exit(1)", "why"),
    ],
)
def test_without_a_report_there_is_a_reason(program, text, told):
    program(text)
    found = separate.measure([])
    assert (set(found), found["error"]) == ({"wall_s", "error"}, told)


def test_an_interrupted_command_interrupts(program):
    program("import sys; sys.exit(130)")
    with pytest.raises(KeyboardInterrupt):
        separate.measure([])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
def test_a_process_of_another_parent_does_nothing(program):
    program(separate._PROGRAM.replace("{parent}", "1"))
    assert separate.measure(["--version"])["error"] == "status 1"
