"""The latencies of one request.

TTFT: from the moment a request was due to its first output. E2E: to the end of its output.
TPOT: the mean time per output token after those that came first: (end of the output - first chunk) / (tokens
- those of the first chunk). If all came at once it is not known.
ITL: the gaps between chunks, as a reader sees them. Where a chunk carries several tokens there are fewer
gaps than tokens; they are not divided, since that would invent arrivals that did not happen.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from octavo.bench.load.exchange import Exchange
from octavo.bench.load.generator import Record

SEVERAL: Final = 1.05  # tokens per chunk: above, chunks are taken to carry several


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds; None where there is nothing to tell.

    Attributes:
        lateness_s: how much later than due it was sent.
        num_tokens: output tokens, as the server counts them.
        num_chunks: pieces of the stream that carried output.
        misses_tokens: whether chunks, whose tokens are not known, and the server's count differ by more than
            a last token without text.
    """

    lateness_s: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    itl_s: tuple[float, ...]
    num_tokens: int
    num_chunks: int
    misses_tokens: bool

    @property
    def hides_tpot(self) -> bool:
        """Whether there were several tokens whose time cannot be told."""
        return self.num_tokens > 1 and self.tpot_s is None


def timings_of(record: Record) -> Timings:
    """Of a request that was answered."""
    exchange, due_s = record.exchange, record.due_s
    moments, num_tokens = exchange.moments, exchange.num_output_tokens
    # An answer without any output that was seen still has an end.
    first_s = moments[0] if moments else exchange.finish_s
    end_s = exchange.output_end_s
    return Timings(
        lateness_s=0.0 if exchange.sent_s is None else exchange.sent_s - due_s,
        ttft_s=None if first_s is None else first_s - due_s,
        tpot_s=_tpot_s(exchange),
        e2e_s=None if end_s is None else end_s - due_s,
        itl_s=tuple(b - a for a, b in pairwise(moments)),
        num_tokens=num_tokens,
        num_chunks=len(exchange.chunk_s),
        misses_tokens=not exchange.chunk_tokens and num_tokens != len(moments),
    )


def _tpot_s(exchange: Exchange) -> float | None:
    """None if nothing came after the first moment, or nothing that is known to be a token."""
    end_s = exchange.output_end_s
    if not exchange.chunk_s or end_s is None or end_s <= exchange.chunk_s[0]:
        return None
    later = exchange.num_output_tokens - _num_first(exchange)
    return (end_s - exchange.chunk_s[0]) / later if later > 0 else None


def _num_first(exchange: Exchange) -> float:
    """Tokens that came first: chunks that were read together count as one.

    Where a server's chunks carry several tokens, it does not tell how many. They are shared out by
    characters: one that sends half of an answer with its first chunk looks no faster for it.
    """
    num_together = exchange.chunk_s.count(exchange.chunk_s[0])
    if exchange.chunk_tokens:
        return sum(exchange.chunk_tokens[:num_together])
    num_tokens = exchange.num_output_tokens
    if num_tokens <= SEVERAL * len(exchange.moments):
        return num_together
    chars = exchange.chunk_chars
    return max(num_together, num_tokens * sum(chars[:num_together]) / sum(chars))
