"""A service level objective: what a request must keep to count as well served."""

from dataclasses import dataclass
from typing import Final

from octavo.bench.metrics.timings import Timings
from octavo.core.errors import InvalidConfig, shown

_NAMES: Final = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None is no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def is_kept(self, timings: Timings) -> bool:
        """Whether a request that was answered was certainly answered well.

        A time that is not known keeps no limit; one token has no TPOT to break.
        """
        pairs = (
            (self.ttft_s, timings.ttft_s),
            (None if timings.num_tokens <= 1 else self.tpot_s, timings.tpot_s),
            (self.e2e_s, timings.e2e_s),
        )
        return all(limit is None or (value is not None and value <= limit) for limit, value in pairs)

    def as_dict(self) -> dict[str, float]:
        """The limits that there are, in seconds."""
        values = {"ttft_s": self.ttft_s, "tpot_s": self.tpot_s, "e2e_s": self.e2e_s}
        return {name: value for name, value in values.items() if value is not None}


def parse_slo(text: str) -> Slo:
    """Turn ``"ttft=0.5,tpot=50ms"`` into limits; a number without a unit is seconds.

    Raises:
        InvalidConfig: it is no such thing.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        value, factor = (value[:-2], 1e-3) if value.endswith("ms") else (value.removesuffix("s"), 1.0)
        try:
            limit = float(value) * factor
        except ValueError:
            limit = -1.0
        if name not in _NAMES or name in found or not 0 < limit < float("inf"):
            raise InvalidConfig(
                f"slo={shown(text)}: write for example ttft=0.5,tpot=50ms; known are {', '.join(_NAMES)}"
            )
        found[name] = limit
    return Slo(*(found.get(name) for name in _NAMES))
