"""Ctrl-C and SIGTERM: the first ends a measurement early, so that it is reported; the next ends all."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

INTERRUPTED: Final = 130  # what a shell gives a command that Ctrl-C ended
_NUMBERS: Final = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR: Final = b"\x1b[?25h"  # which a progress bar hides


@contextmanager
def heard(tell: Callable[[], object]) -> Iterator[None]:
    """Have the first signal while the block runs call ``tell``, and the next end the process at once.

    That goes for the rest of the process, which reports and ends: an exception could come at any place
    instead, and where none is expected it is printed and forgotten. Without a first one all is as it was
    afterwards. In another thread than the main one nothing is heard.
    """
    came = False

    def first(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        for number in _NUMBERS:
            signal.signal(number, _leave)
        tell()

    try:
        before = {number: signal.signal(number, first) for number in _NUMBERS}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        if not came:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def stop_when_told() -> Iterator[asyncio.Event]:
    """An event for the running event loop, which the first signal sets; see ``heard``."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    with heard(lambda: loop.call_soon_threadsafe(stop.set)):
        yield stop


def _leave(_number: int, _frame: FrameType | None) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR)
    os._exit(INTERRUPTED)
