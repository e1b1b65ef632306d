"""Server-sent events, as far as OpenAI's API uses them: the data of each event."""


class EventReader:
    """Cuts a stream into events. Lines may end in either way; comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = bytearray()  # grows by what comes: an event of many pieces is not copied for each
        self._held = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        if self._held or b"\r" in data:
            data = self._held + data
            # The other half of a line's end may come with the next piece.
            self._held = b"\r" if data.endswith(b"\r") else b""
            data = data.removesuffix(b"\r").replace(b"\r\n", b"\n")
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
