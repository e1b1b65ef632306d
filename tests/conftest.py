"""Fixtures and settings for all tests."""

import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from octavo.cli import main
from octavo.weights.sources import resolve

# No deadline: the time of one example says nothing on a shared machine.
hypothesis.settings.register_profile("octavo", deadline=None, print_blob=True)
hypothesis.settings.load_profile("octavo")


@pytest.fixture
def usual_ctrl_c() -> Iterator[None]:
    """Ctrl-C as Python takes it; a background job of a script inherits it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's GGUF file, in the user's own cache; fetched if this is its first use."""
    return resolve("smollm2")


@pytest.fixture
def run(capsys):
    """Runs a command line; gives exit status, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = 0
        try:
            main([str(a) for a in arguments])
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return status, captured.out, captured.err

    return run
