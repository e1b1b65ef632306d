"""Fixtures and settings for all tests."""

import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

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
