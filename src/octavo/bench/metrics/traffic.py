"""How requests came, and how many were under way together."""

from collections.abc import Sequence

from octavo.bench.load.generator import Record


def due_per_s(records: Sequence[Record]) -> float | None:
    """Requests per second that were due: the gaps between them, over the time from the first to the last.

    Later turns do not count, which come when an answer does. None if all were due at the same moment.
    """
    due = [record.due_s for record in records if record.item.turn == 0]
    span_s = max(due, default=0.0) - min(due, default=0.0)
    return (len(due) - 1) / span_s if span_s > 0 else None


def most_in_flight(records: Sequence[Record]) -> int:
    """The most requests that were sent and not over at a moment."""
    changes = []
    for record in records:
        exchange = record.exchange
        if exchange.sent_s is not None:
            changes += [(exchange.sent_s, 1), (exchange.closed_s, -1)]
    now = most = 0
    for _, change in sorted(changes):  # at the same moment ends come before beginnings
        now += change
        most = max(most, now)
    return most
