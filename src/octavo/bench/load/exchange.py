"""What happened to one request: the moments at which its parts were sent and came."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

# Why a request failed. What a server says itself is "http 429" and the like.
Failure = str
CONNECT: Final = "could not connect"
LOST: Final = "connection lost before an answer"
TIMEOUT: Final = "timed out"
BROKEN: Final = "stream broke off"
SERVER_ERROR: Final = "error in the stream"
NO_OUTPUT: Final = "no output"
BAD_ANSWER: Final = "not understood"
REFUSED: Final = "refused by the engine"
UNSUITED: Final = "prompt does not suit the endpoint"
INTERRUPTED: Final = "interrupted"

Role = Literal["output", "finish"]


@dataclass(slots=True)
class Exchange:
    """Filled in while a request runs. Times are ``time.perf_counter()``.

    A *chunk* is a piece of the stream that carries output: the next tokens of one choice, whose number the
    API does not tell. ``usage`` tells only their sum, in the end.

    Attributes:
        sent_s: when it was handed to the connection, or to the engine; None if it never was.
        chunk_s: when each chunk came.
        chunk_chars: characters of each chunk, where its tokens are not known.
        finish_s: when the piece with the reason of the end came.
        finish_had_output: whether that piece was a chunk itself.
        last_s: when the last byte of the answer came; a server may keep the connection open for longer.
        closed_s: when the request was over, for whatever reason.
        was_resent: the connection was lost before anything came, and it was sent once more.
        chunk_tokens: tokens of each chunk, where they are known (an engine in process tells).
        prompt_tokens, output_tokens, cached_tokens: from the server's ``usage``; None if it gives none.
        failure: why it failed, in a few words that are the same for the same reason.
        detail: what exactly.
        reader: interprets what came, if that is still to be done (``settle``).
        unread_bytes: what that is.
    """

    sent_s: float | None = None
    chunk_s: list[float] = field(default_factory=list)
    chunk_chars: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    finish_s: float | None = None
    finish_had_output: bool = False
    last_s: float | None = None
    closed_s: float = 0.0
    was_resent: bool = False
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failure: Failure | None = None
    detail: str = ""
    reader: Callable[[], None] | None = None
    unread_bytes: int = 0

    def settle(self) -> None:
        """Interpret what came.

        Before, only when it was sent and closed is known, and failures that were none of the stream's.
        """
        if self.reader is not None:
            reader, self.reader, self.unread_bytes = self.reader, None, 0
            reader()

    def fail(self, failure: Failure, detail: str = "") -> None:
        """Note the first reason; later ones are its consequences."""
        if self.failure is None:
            self.failure, self.detail = failure, detail[:500]

    def note_resend(self) -> None:
        """It is sent once more."""
        self.was_resent = True

    @property
    def num_output_tokens(self) -> int:
        """As the server counts them; where it does not tell, one for each chunk."""
        return len(self.chunk_s) if self.output_tokens is None else self.output_tokens

    @property
    def moments(self) -> list[float]:
        """When output came: at each chunk.

        If exactly one token is missing from the chunks, and a piece without text ended the stream, that piece
        brought the last token, whose text is empty, like that of an end token.
        """
        is_missing_one = self.output_tokens == len(self.chunk_s) + 1
        if is_missing_one and self.finish_s is not None and not self.finish_had_output:
            return [*self.chunk_s, self.finish_s]
        return self.chunk_s

    @property
    def output_end_s(self) -> float | None:
        """When the last token was there, at the latest.

        Tokens that are in no chunk, such as those without text, may have come until the piece that ended the
        stream.
        """
        has_all = bool(self.chunk_tokens) or self.num_output_tokens <= len(self.chunk_s)
        if self.chunk_s and (has_all or self.finish_had_output or self.finish_s is None):
            return self.chunk_s[-1]
        return self.finish_s
