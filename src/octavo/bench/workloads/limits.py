"""Cutting a trace to what a machine can take: time scaled, requests limited, lengths capped."""

from dataclasses import asdict, dataclass
from typing import Any

from octavo.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """How a trace is changed.

    Attributes:
        scale: arrival times are multiplied by this: 2 is half as fast, 0.5 twice.
        limit: only the first so many requests.
        max_prompt_tokens: longer prompts keep their beginning, which they may share.
        max_output_tokens: more are not asked for.

    Raises:
        InvalidConfig: a value out of range.
    """

    scale: float = 1.0
    limit: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise InvalidConfig(f"scale={self.scale}: must be a number above 0")
        for name in ("limit", "max_prompt_tokens", "max_output_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidConfig(f"{name}={value}: must be at least 1")

    def prompt_len(self, length: int) -> int:
        """As far as it may be."""
        return length if self.max_prompt_tokens is None else min(length, self.max_prompt_tokens)

    def output_len(self, length: int) -> int:
        """As far as it may be."""
        return length if self.max_output_tokens is None else min(length, self.max_output_tokens)

    def describe(self) -> dict[str, Any]:
        """What is set, for reports."""
        return {name: value for name, value in asdict(self).items() if value is not None}
