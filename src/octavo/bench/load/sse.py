"""Server-sent events, as far as OpenAI's API uses them: the data of each event."""


class EventReader:
    """Cuts a stream into events. Lines end in LF, CR LF or CR; comments and other fields are passed over.

    A line is over with its CR, whose LF may come later: no event is held until the next one comes.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # grows by what comes: an event of many pieces is not copied for each
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        if not data:
            return []
        if self._after_cr or b"\r" in data:
            begin = self._after_cr and data.startswith(b"\n")  # with the other half of a line's end
            self._after_cr = data.endswith(b"\r")
            data = data[begin:].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        seen = max(0, len(self._rest) - 1)
        self._rest += data
        if self._rest.find(b"\n\n", seen) < 0:
            return []
        *complete, rest = bytes(self._rest).split(b"\n\n")
        self._rest = bytearray(rest)
        found = []
        for event in complete:
            if event.startswith(b"data: ") and b"\n" not in event:  # nearly all
                found.append(event[6:])
                continue
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                found.append(b"\n".join(lines))
        return found
