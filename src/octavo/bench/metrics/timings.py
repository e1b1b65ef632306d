"""The latencies of one request.

TTFT: from the moment a request was due to its first output. E2E: to the end of its output.
TPOT: the mean time per output token after the first: (last token - first chunk) / (tokens - those of the
first chunk). The tokens of the first chunk are known of an engine in process; of a server one is assumed.
ITL: the gaps between chunks, as a reader sees them. Where a chunk carries several tokens there are fewer
gaps than tokens; they are not divided, since that would invent arrivals that did not happen.
"""

from dataclasses import dataclass
from itertools import pairwise

from octavo.bench.load.generator import Record


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


def timings_of(record: Record) -> Timings:
    """Of a request that was answered."""
    exchange, due_s = record.exchange, record.due_s
    moments, num_tokens = exchange.moments, exchange.num_output_tokens
    # An answer without any output that was seen still has an end.
    first_s = moments[0] if moments else exchange.finish_s
    last_s = moments[-1] if moments else exchange.finish_s
    num_first = exchange.chunk_tokens[0] if exchange.chunk_tokens else 1
    later = num_tokens - num_first
    return Timings(
        lateness_s=exchange.sent_s - due_s,
        ttft_s=None if first_s is None else first_s - due_s,
        tpot_s=(moments[-1] - moments[0]) / later if later > 0 and moments else None,
        e2e_s=None if last_s is None else last_s - due_s,
        itl_s=tuple(b - a for a, b in pairwise(moments)),
        num_tokens=num_tokens,
        num_chunks=len(exchange.chunk_s),
        misses_tokens=not exchange.chunk_tokens and num_tokens != len(moments),
    )
