"""Signals: the first is told, the next ends the process wherever it is."""

import signal
import subprocess
import sys
import threading

import pytest

from octavo.bench.interrupts import heard

# An exception in __del__ is printed and forgotten.
PROGRAM = """
import signal, sys
from octavo.bench.interrupts import heard
numbers = [getattr(signal, name) for name in sys.argv[1:]]
with heard(lambda: print("told", flush=True)):
    signal.raise_signal(numbers[0])
class Odd:
    def __del__(self):
        signal.raise_signal(numbers[1])
del (odd := [Odd()])[0]
print("not reached", flush=True)
"""


@pytest.mark.parametrize("first", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("second", ["SIGINT", "SIGTERM"])
def test_the_second_ends_all_at_once_and_in_silence(first, second):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, first, second],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "told\n", "")


def test_without_one_all_is_as_it_was():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with heard(lambda: None):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_other_threads_hear_nothing():
    results = []

    def work():
        with heard(lambda: None):
            results.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [before]
