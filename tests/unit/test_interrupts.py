import signal
import threading

import pytest

from octavo.engine.interrupts import deferred_interrupts

pytestmark = pytest.mark.usefixtures("usual_ctrl_c")


def test_ctrl_c_waits_for_the_end_of_the_block():
    before = signal.getsignal(signal.SIGINT)
    done = []

    def interrupt_twice() -> None:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        interrupt_twice()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is before
    with deferred_interrupts():
        pass


def test_an_error_inside_comes_through():
    with pytest.raises(ValueError, match="inside"), deferred_interrupts():
        raise ValueError("inside")


def test_other_threads_are_left_alone():
    results = []

    def work() -> None:
        with deferred_interrupts():
            results.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [before]
