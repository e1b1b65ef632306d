"""A workload against a target, several times over, and what all of it says."""

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from octavo.bench.interrupts import stop_when_told
from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.generator import LoadResult, Record, run_load
from octavo.bench.load.memory_use import watch_memory
from octavo.bench.load.target import Target
from octavo.bench.metrics.pooled import quantiles, timeline
from octavo.bench.metrics.slo import Slo
from octavo.bench.metrics.summary import combine, request_as_dict, summarize
from octavo.bench.metrics.warnings import same_prompts, warnings_of
from octavo.bench.workloads.item import Workload, digest
from octavo.core.errors import InvalidConfig

WARM_UP: Final = -1
_WARM_UP_USERS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentSettings:
    """How often, and what to keep.

    Attributes:
        warm_up: requests before the first repeat that do not count.
        per_request: keep every request in the report.

    Raises:
        InvalidConfig: a value out of range.
    """

    repeats: int = 3
    warm_up: int = 4
    slo: Slo | None = None
    per_request: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= 1000:
            raise InvalidConfig(f"repeats={self.repeats}: must be from 1 to 1000")
        if self.warm_up < 0:
            raise InvalidConfig(f"warm_up={self.warm_up}: must not be negative")


class Progress(Protocol):
    """Is told how far an experiment is."""

    def begin(self, name: str, num_requests: int) -> None:
        """A part begins."""
        ...

    def done(self, record: Record) -> None:
        """A request of it is over."""
        ...


@dataclass(slots=True)
class Findings:
    """What an experiment found.

    Attributes:
        repeats: one summary each (``metrics.summary.summarize``), with ``memory``.
        digest: of the first repeat's requests: the same requests have the same.
        results: what the summaries were made of.
        is_streamed: whether it is known when each piece of an answer came.
    """

    repeats: list[dict[str, Any]] = field(default_factory=list)
    results: list[LoadResult] = field(default_factory=list)
    digest: str = ""
    interrupted: bool = False
    peak_rss_bytes: int | None = None
    is_streamed: bool = True

    def as_dict(self, *, per_request: bool) -> dict[str, Any]:
        """For reports."""
        found: dict[str, Any] = {
            "interrupted": self.interrupted,
            "peak_rss_bytes": self.peak_rss_bytes,
            "summary": combine(self.repeats),
            "repeats": self.repeats,
            "quantiles": quantiles(self.results),
            "timeline": timeline(self.results) if self.is_streamed else None,
        }
        if not self.is_streamed:
            found["quantiles"]["itl_s"] = []
        found["requests"] = None
        if per_request:
            found["requests"] = [
                {"repeat": repeat, **request_as_dict(record, result.start_s)}
                for repeat, result in enumerate(self.results)
                for record in result.records
            ]
        return found


async def run_experiment(
    target: Target,
    workload: Workload,
    plan: ArrivalPlan,
    settings: ExperimentSettings,
    progress: Progress,
) -> Findings:
    """Warm up and run all repeats. The first Ctrl-C, or SIGTERM, ends it early; what there is comes back.

    Raises:
        InvalidConfig: the workload cannot come as the plan wants.
    """
    findings = Findings()
    with stop_when_told() as stop:
        if settings.warm_up:
            items = workload.items(WARM_UP)[: settings.warm_up]
            users = ArrivalPlan(kind="closed", concurrency=_WARM_UP_USERS)
            progress.begin("Warming up", len(items))
            await run_load(target, items, users, stop=stop, on_done=progress.done)
        for repeat in range(settings.repeats):
            if stop.is_set():
                break
            items = workload.items(repeat)
            findings.digest = findings.digest or digest(items)
            name = f"Repeat {repeat + 1} of {settings.repeats}" if settings.repeats > 1 else "Measuring"
            progress.begin(name, len(items))
            async with watch_memory(target) as watch:
                result = await run_load(
                    target, items, plan.of_repeat(repeat), stop=stop, on_done=progress.done
                )
            del items
            findings.results.append(result)
            findings.repeats.append({**summarize(result, settings.slo), "memory": watch.as_dict()})
    findings.interrupted = stop.is_set()
    findings.peak_rss_bytes = target.peak_rss_bytes()
    return findings


def describe(
    findings: Findings,
    target: Target,
    workload: Workload,
    plan: ArrivalPlan,
    settings: ExperimentSettings,
) -> dict[str, Any]:
    """The parts of a report that an experiment gives."""
    told = target.describe()
    return {
        "target": told,
        "workload": {**workload.describe(), **plan.describe(), "digest": findings.digest or None},
        "settings": {
            "repeats": settings.repeats,
            "warm_up": settings.warm_up,
            "slo": None if settings.slo is None else settings.slo.as_dict(),
        },
        **findings.as_dict(per_request=settings.per_request),
        "warnings": [
            *([] if workload.can_differ else same_prompts(findings.repeats, told)),
            *warnings_of(findings.repeats, told, interrupted=findings.interrupted),
        ],
    }
