"""Traces: when requests came and how long they were, with contents made up.

Mooncake: a JSON object per line with ``timestamp`` (milliseconds), ``input_length``, ``output_length`` and
``hash_ids``, one for each block of 512 tokens; prompts whose ids begin alike begin with the same tokens.
Azure LLM inference: CSV with the columns ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``.
"""

import csv
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from octavo.bench.workloads.contents import Vocabulary, random_tokens, stream_of
from octavo.bench.workloads.item import TokenIds, WorkItem
from octavo.bench.workloads.lengths import count_of
from octavo.bench.workloads.limits import TraceLimits
from octavo.bench.workloads.lines import Fields, MalformedLine, json_objects, numbered_lines
from octavo.bench.workloads.reuse import reusable_fraction
from octavo.core.errors import InvalidRequest, shown

HASH_BLOCK_LEN: Final = 512
_AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# Date and time, fraction of a second, offset; without an offset it is UTC.
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]*))? ?(Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_OWN = 1 << 40  # beyond all hash ids: blocks that are nobody else's


class TraceRequest(NamedTuple):
    """One line: seconds since the first, lengths in tokens, the names of the prompt's blocks if known."""

    arrival_s: float
    input_len: int
    output_len: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as a file has them, in the order of their arrival; the first comes at 0."""

    kind: str
    file: Path
    requests: tuple[TraceRequest, ...]
    limits: TraceLimits
    vocabulary: Vocabulary
    seed: int = 0

    @property
    def has_arrivals(self) -> bool:
        """Whether its requests say when they come."""
        return True

    @property
    def can_differ(self) -> bool:
        """Whether its repeats have contents of their own."""
        return True

    def items(self, repeat: int, variant: int = 0) -> list[WorkItem]:
        """The requests of one repeat, with tokens of its own."""
        blocks: dict[int, TokenIds] = {}

        def block(name: int) -> TokenIds:
            if name not in blocks:
                rng = stream_of(self.seed, repeat, variant, name)
                blocks[name] = random_tokens(rng, HASH_BLOCK_LEN, self.vocabulary)
            return blocks[name]

        items = []
        for i, request in enumerate(self.requests):
            length = self.limits.prompt_len(request.input_len)
            prompt = array("i")
            if request.hash_ids:
                for name in request.hash_ids[: -(-length // HASH_BLOCK_LEN)]:
                    prompt += block(name)
                del prompt[length:]
            else:
                prompt = random_tokens(
                    stream_of(self.seed, repeat, variant, _OWN + i), length, self.vocabulary
                )
            items.append(
                WorkItem(
                    index=i,
                    prompt=prompt,
                    max_tokens=self.limits.output_len(request.output_len),
                    arrival_s=request.arrival_s * self.limits.scale,
                )
            )
        return items

    def describe(self) -> dict[str, Any]:
        """For reports; with hash ids also which part of the prompts is reusable, as asked and uncut."""
        capped = sum(r.input_len > self.limits.prompt_len(r.input_len) for r in self.requests)
        reusable = {}
        if self.requests[0].hash_ids:
            whole = [(r.input_len, r.hash_ids) for r in self.requests]
            asked = [(self.limits.prompt_len(length), names) for length, names in whole]
            reusable = {
                "reusable_fraction": round(reusable_fraction(asked, HASH_BLOCK_LEN), 6),
                "reusable_fraction_uncut": round(reusable_fraction(whole, HASH_BLOCK_LEN), 6),
            }
        return {
            "kind": self.kind,
            "file": self.file.name,
            "num_requests": len(self.requests),
            "num_prompts_cut": capped,
            **reusable,
            **self.limits.describe(),
            "seed": self.seed,
        }


def read_mooncake(file: Path, limits: TraceLimits, vocabulary: Vocabulary, seed: int) -> Trace:
    """Read a Mooncake trace.

    Raises:
        MalformedLine: names file and line.
    """
    return _trace("mooncake", file, _mooncake(file), limits=limits, vocabulary=vocabulary, seed=seed)


def read_azure(file: Path, limits: TraceLimits, vocabulary: Vocabulary, seed: int) -> Trace:
    """Read an Azure LLM inference trace.

    Raises:
        MalformedLine: names file and line.
    """
    return _trace("azure", file, _azure(file), limits=limits, vocabulary=vocabulary, seed=seed)


def _trace(
    kind: str,
    file: Path,
    lines: Iterator[TraceRequest],
    *,
    limits: TraceLimits,
    vocabulary: Vocabulary,
    seed: int,
) -> Trace:
    found = sorted(lines, key=lambda request: request.arrival_s)[: limits.limit]
    if not found:
        raise InvalidRequest(f"{file} has no requests")
    start = found[0].arrival_s
    moved = tuple(request._replace(arrival_s=request.arrival_s - start) for request in found)
    return Trace(kind, file, moved, limits, vocabulary, seed)


def _mooncake(file: Path) -> Iterator[TraceRequest]:
    for number, values in json_objects(file):
        fields = Fields(file, number, values)
        input_len = fields.tokens("input_length", least=1)
        hash_ids = fields.integers("hash_ids")
        if len(hash_ids) != (needed := -(-input_len // HASH_BLOCK_LEN)):
            raise fields.wrong(
                f"{len(hash_ids)} hash_ids, {'fewer' if len(hash_ids) < needed else 'more'} than "
                f"input_length={input_len} needs: {needed}, one for each {HASH_BLOCK_LEN} tokens"
            )
        arrival_s = fields.number("timestamp") / 1000
        # A request that would generate nothing still has a first token.
        output_len = max(1, fields.tokens("output_length", least=0))
        yield TraceRequest(arrival_s, input_len, output_len, tuple(hash_ids))


def _azure(file: Path) -> Iterator[TraceRequest]:
    header: list[str] | None = None
    for number, text in numbered_lines(file):
        try:
            row = next(csv.reader([text]))
        except csv.Error as error:
            raise MalformedLine(file, number, f"is not CSV: {error}") from None
        if header is None:
            header = row
            missing = [name for name in _AZURE_COLUMNS if name not in header]
            if missing:
                raise MalformedLine(file, number, f"the header has no column {missing[0]!r}: {shown(text)}")
            continue
        if len(row) != len(header):
            raise MalformedLine(file, number, f"{len(row)} values for {len(header)} columns: {shown(text)}")
        values = dict(zip(header, row, strict=True))
        counts = {name: count_of(values[name]) for name in _AZURE_COLUMNS[1:]}
        # What is no count stays as it is, to be shown.
        fields = Fields(file, number, {k: values[k] if n is None else n for k, n in counts.items()})
        yield TraceRequest(
            _seconds(file, number, values["TIMESTAMP"]),
            fields.tokens("ContextTokens", least=1),
            max(1, fields.tokens("GeneratedTokens", least=0)),
            (),
        )


def _seconds(file: Path, line: int, text: str) -> float:
    """Of a time like ``2023-11-16 18:15:46.6805900+00:00``: more digits than Python's times hold."""
    found = _TIME.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        whole, fraction, zone = found.groups()
        begin = datetime.fromisoformat(whole + (zone or "Z"))
        return begin.timestamp() + float(f"0.{fraction or 0}")
    except (ValueError, OverflowError):
        raise MalformedLine(file, line, f"TIMESTAMP={shown(text)}: no date and time") from None
