"""What happened to one request: the moments at which its parts were sent and came."""

from dataclasses import dataclass, field
from typing import Final, Literal

# Why a request failed. What a server says itself is "http 429" and the like.
Failure = str
CONNECT: Final = "could not connect"
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
        sent_s: when it was handed to the connection, or to the engine.
        chunk_s: when each chunk came.
        finish_s: when the piece with the reason of the end came.
        finish_had_output: whether that piece was a chunk itself.
        closed_s: when the whole answer was over.
        chunk_tokens: tokens of each chunk, where they are known (an engine in process tells).
        prompt_tokens, output_tokens, cached_tokens: from the server's ``usage``; None if it gives none.
        failure: why it failed, in a few words that are the same for the same reason.
        detail: what exactly.
    """

    sent_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    finish_s: float | None = None
    finish_had_output: bool = False
    closed_s: float = 0.0
    text: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failure: Failure | None = None
    detail: str = ""

    def fail(self, failure: Failure, detail: str = "") -> None:
        """Note the first reason; later ones are its consequences."""
        if self.failure is None:
            self.failure, self.detail = failure, detail[:500]

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
