"""Stop texts: found across token borders, cut out, and never shown even in part."""

from collections.abc import Sequence


class StopChecker:
    """Lets text through until one of ``stops`` appears; holds back what may be the beginning of one.

    What comes out does not depend on how the text is cut into pieces: the stop that is complete first ends
    it, the longest one if several end at the same character.

    Args:
        stops: the texts, none of them empty.
        include_stop: let the stop itself through as well.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self._num_exempt = 0  # characters at the beginning of what is held at which no stop counts
        self.stopped = False

    def push(self, text: str, *, exempt: bool = False) -> str:
        """Take more text, return what is certain to be output; nothing after a stop was found.

        A stop whose last character is ``exempt`` does not count. It may begin there and end later, though.
        """
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        pending = self._held + text
        num_exempt = len(pending) if exempt else self._num_exempt
        found = [
            (at + len(stop), at)
            for stop in self._stops
            if (at := pending.find(stop, max(0, num_exempt - len(stop) + 1))) >= 0
        ]
        if found:
            self.stopped = True
            self._held = ""
            end, start = min(found)
            return pending[: end if self._include_stop else start]
        keep = self._num_undecided(pending)
        self._held = pending[len(pending) - keep :]
        self._num_exempt = max(0, num_exempt - (len(pending) - keep))
        return pending[: len(pending) - keep]

    def flush(self) -> str:
        """The held text, when no more can come."""
        held, self._held = self._held, ""
        return held

    def _num_undecided(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
