"""Whether the times between pieces are the server's, or those of a generator that read them late."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.bench.load.exchange import Exchange
from octavo.bench.load.stalls import Stalls

# A stall is too long where it could move a time per token by this fraction, or a gap by that.
_OF_SPAN: Final = 0.1
_OF_GAP: Final = 0.5
_MANY: Final = 0.25  # of the answers, or of the gaps: more than a median bears


def is_tpot_late(exchange: Exchange, stalls: Stalls) -> bool:
    """Whether the first or the last chunk was read too late for the time between them to be tokens' own."""
    moments, end_s = exchange.moments, exchange.output_end_s
    if not moments or end_s is None or exchange.num_output_tokens < 2:
        return False
    stall_s = max(_stall_s(moments[0], stalls), _stall_s(end_s, stalls))
    return stall_s > _OF_SPAN * (end_s - moments[0])


def num_late_gaps(exchange: Exchange, stalls: Stalls) -> int:
    """Gaps between chunks that ended in a stall which is long beside them."""
    moments = exchange.moments
    if len(moments) < 2 or not stalls:
        return 0
    most_s = _OF_GAP * (moments[-1] - moments[0]) / (len(moments) - 1)
    return sum(_stall_s(moment, stalls) > most_s for moment in moments[1:])


def too_many_late(repeats: Sequence[Mapping[str, Any]], name: str) -> tuple[int, int] | None:
    """How many answers (for ``"tpot_s"``) or gaps (for ``"itl_s"``) were read late, and of how many.

    None if that is few enough for a median to be the server's.
    """
    if name == "tpot_s":
        late = sum(repeat["counts"]["tpot_read_late"] for repeat in repeats)
        total = sum(repeat["requests"]["ok"] for repeat in repeats)
    else:
        late = sum(repeat["counts"]["gaps_read_late"] for repeat in repeats)
        total = sum((repeat["itl_s"] or {"count": 0})["count"] for repeat in repeats)
    return (late, total) if late > _MANY * total else None


def _stall_s(moment_s: float, stalls: Stalls) -> float:
    """How long the stall was in which a moment lies; 0 if in none."""
    at = bisect_left(stalls, (moment_s,)) - 1
    if at < 0 or moment_s > stalls[at][1]:
        return 0.0
    return stalls[at][1] - stalls[at][0]
