"""Server-sent events, as far as OpenAI's API uses them: the data of each event."""


class EventReader:
    """Cuts a stream into events. Lines may end in either way; comments and other fields are passed over."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that are complete now."""
        buffer = self._rest + data
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n")
        *complete, self._rest = buffer.split(b"\n\n")
        found = []
        for event in complete:
            if event.startswith(b"data: ") and b"\n" not in event:  # nearly all
                found.append(event[6:])
                continue
            lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines:
                found.append(b"\n".join(lines))
        return found
