"""``/metrics``: what the engine counted, what its pool and queue are like now, and what was answered.

Gauges are read while a step may run. Each is a plain number, or the length of a list, that the engine's
thread replaces as a whole; reading one takes no lock, and sees it as it was before or after a change. Several
of them may come from two sides of one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo.engine.llm import LLM
from octavo.scheduling.scheduler import Scheduler
from octavo.server.telemetry.counting import EngineCounts
from octavo.server.telemetry.families import FAMILIES, REJECTIONS, REQUESTS_S, Family, Histogram

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_OUTPUTS: Final = ("/v1/chat/completions", "/v1/completions")

Samples = list[tuple[tuple[str, ...], float]]  # values of the family's labels, and the number


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """What never changes of a cache, as text."""

    block_size: str
    dtype: str
    block_bytes: int
    prefix_cache: bool

    @staticmethod
    def of(llm: LLM) -> "CacheFacts":
        """Of a loaded model's."""
        config, capacity = llm.config, llm.capacity
        dtype = "bfloat16" if config.kv_dtype == "auto" else config.kv_dtype
        return CacheFacts(capacity.block_sizes_text, dtype, capacity.block_bytes, config.prefix_cache)


class HttpCounts:
    """Answers of the server; used in the event loop only."""

    def __init__(self) -> None:
        self.answers = {("POST", endpoint, "200"): 0 for endpoint in _OUTPUTS}
        self.seconds = {endpoint: Histogram(REQUESTS_S) for endpoint in _OUTPUTS}
        self.rejections = dict.fromkeys(REJECTIONS.values(), 0)

    def count(self, method: str, endpoint: str, status: int, seconds: float) -> None:
        """One answer.

        Args:
            endpoint: the route, not the path: there must be few of them.
            status: 0 if the client left before there was one.
            seconds: from the request to the end of the answer.
        """
        key = method if method in _METHODS else "other", endpoint, str(status) if status else "left"
        self.answers[key] = self.answers.get(key, 0) + 1
        if endpoint not in self.seconds:
            self.seconds[endpoint] = Histogram(REQUESTS_S)
        self.seconds[endpoint].observe(seconds)
        if method == "POST" and status in REJECTIONS:
            self.rejections[REJECTIONS[status]] += 1


class Metrics(Collector):
    """All families, with zeros from the start, in a registry of their own.

    Args:
        scheduler: whose pool and queue are told.
        context_len: longest sequence in tokens.
        prefix: what each name begins with, before a colon.

    Attributes:
        engine: to be told of every step.
        http: to be told of every answer.
        registry: what a scrape is made of.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        context_len: int,
        facts: CacheFacts,
        model_name: str,
        prefix: str = "octavo",
    ) -> None:
        self.engine = EngineCounts(context_len)
        self.http = HttpCounts()
        self.registry = CollectorRegistry()
        self._scheduler = scheduler
        self._facts = facts
        self._model_name = model_name
        self._prefix = prefix
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    @staticmethod
    def of(llm: LLM, *, model_name: str, prefix: str = "octavo") -> "Metrics":
        """Of a loaded model."""
        return Metrics(
            llm.engine.scheduler,
            context_len=llm.capacity.context_len,
            facts=CacheFacts.of(llm),
            model_name=model_name,
            prefix=prefix,
        )

    def describe(self) -> list[Metric]:
        """No names are needed when it is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families as they are now."""
        histograms, counters, reasons = self.engine.copy()
        gaps = histograms["inter_token_latency_seconds"]
        histograms = {**histograms, "time_per_output_token_seconds": gaps}
        samples: dict[str, Samples] = {name: [((), value)] for name, value in counters.items()}
        samples["request_success"] = [((reason,), count) for reason, count in reasons.items()]
        samples |= self._engine_samples()
        samples["http_requests"] = [(key, count) for key, count in self.http.answers.items()]
        samples["requests_rejected"] = [((reason,), n) for reason, n in self.http.rejections.items()]
        for family in FAMILIES:
            if family.kind != "histogram":
                yield self._numbers(family, samples[family.name])
            elif family.labels:
                yield self._buckets(family, {(name,): h for name, h in self.http.seconds.items()})
            else:
                yield self._buckets(family, {(): histograms[family.name]})

    def _engine_samples(self) -> dict[str, Samples]:
        paging, scheduling = self._scheduler.kv.stats(), self._scheduler.stats()
        facts = self._facts
        plain: dict[str, float] = {
            "num_preemptions": scheduling.num_preemptions,
            "prefix_cache_queries": paging.query_tokens,
            "prefix_cache_hits": paging.hit_tokens,
            "spec_decode_num_draft_tokens": scheduling.num_drafts,
            "spec_decode_num_accepted_tokens": scheduling.num_drafts_accepted,
            "steps": scheduling.num_steps,
            "kv_evictions": paging.evictions,
            "kv_copies": paging.copies,
            "num_requests_running": scheduling.num_running,
            "num_requests_waiting": scheduling.num_waiting,
            "kv_cache_usage_perc": paging.used_blocks / paging.total_blocks,
            "kv_pinned_blocks": paging.pinned_blocks,
            "kv_waste_ratio": paging.waste,
            "kv_sharing_ratio": paging.sharing_ratio,
            "kv_scatter_ratio": paging.scatter,
            "kv_peak_blocks": scheduling.peak_blocks,
        }
        samples: dict[str, Samples] = {name: [((), value)] for name, value in plain.items()}
        samples["kv_blocks"] = [
            (("free",), paging.free_blocks),
            (("cached",), paging.cached_blocks),
            (("held",), max(0, paging.used_blocks - paging.shared_blocks)),
            (("shared",), paging.shared_blocks),
        ]
        samples["kv_tier_blocks"] = [
            (("device", "free"), paging.free_blocks),
            (("device", "cached"), paging.cached_blocks),
            (("device", "used"), paging.used_blocks),
        ]
        info = (
            facts.block_size,
            facts.dtype,
            str(paging.total_blocks),
            str(facts.block_bytes),
            str(facts.prefix_cache),
        )
        samples["cache_config_info"] = [(info, 1)]
        return samples

    def _numbers(self, family: Family, samples: Samples) -> Metric:
        make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = make(self._name(family), family.meaning, labels=("model_name", *family.labels))
        for labels, value in samples:
            metric.add_metric((self._model_name, *labels), value)
        return metric

    def _buckets(self, family: Family, histograms: Mapping[tuple[str, ...], Histogram]) -> Metric:
        metric = HistogramMetricFamily(
            self._name(family), family.meaning, labels=("model_name", *family.labels)
        )
        for labels, histogram in histograms.items():
            metric.add_metric((self._model_name, *labels), histogram.buckets(), histogram.total)
        return metric

    def _name(self, family: Family) -> str:
        return f"{self._prefix}:{family.name}"
