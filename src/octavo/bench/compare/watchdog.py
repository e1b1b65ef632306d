"""Ends a program whose starter is gone, however that went: ``kill -9`` leaves it no time to do so itself."""

import contextlib
import subprocess
from typing import Final

from octavo.core.errors import OctavoError

# Waits for two lines. The pipe ends when its other end does: without the second line, there was no dismissal.
# SIGKILL ends what is frozen, too.
_SCRIPT: Final = 'read -r group || exit 0; read -r dismissed || kill -s KILL -- "-$group"'


class Watchdog:
    """A shell at the end of a pipe that only this process holds open, out of reach of Ctrl-C.

    Raises:
        OctavoError: it cannot be started.
    """

    def __init__(self) -> None:
        try:
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise OctavoError(f"cannot start /bin/sh: {error}") from error
        self._is_guarding = False

    def guard(self, group: int) -> None:
        """Have this process group killed when this process is gone."""
        self._is_guarding = True
        self._say(f"{group}\n")

    def dismiss(self) -> None:
        """The group has ended, or there never was one."""
        if self._is_guarding:
            self._say("\n")
        assert self._shell.stdin is not None
        with contextlib.suppress(OSError):
            self._shell.stdin.close()
        self._shell.wait()

    def _say(self, text: str) -> None:
        assert self._shell.stdin is not None
        with contextlib.suppress(OSError):  # someone ended it
            self._shell.stdin.write(text.encode())
            self._shell.stdin.flush()
