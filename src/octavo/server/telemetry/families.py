"""The metrics' names, kinds, meanings and buckets. Where vLLM has the same, its name is used.

``docs/operating.md`` has them as a table.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    """One metric.

    Attributes:
        name: without the prefix, and of a counter without "_total".
        labels: besides model_name.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


class Histogram:
    """Counts of values up to each bound, in plain numbers: one list access for each value.

    Attributes:
        bounds: ascending; the bucket beyond the last has none.
        counts: of each bucket alone.
        total: sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """One value, or so many equal ones."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def copy(self) -> "Histogram":
        """As it is now."""
        twin = Histogram(self.bounds)
        twin.counts = self.counts.copy()
        twin.total = self.total
        return twin

    def buckets(self) -> list[tuple[str, int]]:
        """Bound as text, and how many values were not above it."""
        buckets, count = [], 0
        for bound, own in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += own
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), count))
        return buckets


TOKEN_GAPS_S: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
FIRST_TOKENS_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
REQUESTS_S: Final = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEPS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24)
STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NUM_CHOICES: Final = (1, 2, 5, 10, 20, 50)


def token_counts(largest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, ... up to a number."""
    bounds = []
    power = 1
    while power <= largest:
        bounds += [power * digit for digit in (1, 2, 5) if power * digit <= largest]
        power *= 10
    return tuple(bounds)


REASONS: Final = ("stop", "length", "abort", "error")
REJECTIONS: Final = {
    400: "invalid",
    401: "unauthorized",
    403: "forbidden",
    404: "unknown",
    413: "too_large",
    415: "invalid",
    422: "invalid",
    429: "queue_full",
    503: "unavailable",
}

FAMILIES: Final = (
    Family("time_to_first_token_seconds", "histogram", "From arrival to the first token, of each request."),
    Family(
        "inter_token_latency_seconds",
        "histogram",
        "Between two tokens of one choice; tokens that come together share the time. Not of beams.",
    ),
    Family(
        "time_per_output_token_seconds",
        "histogram",
        "An older name of inter_token_latency_seconds, for dashboards that have it.",
    ),
    Family(
        "request_time_per_output_token_seconds",
        "histogram",
        "Mean time between two tokens, of each choice with at least two. Not of beams.",
    ),
    Family("e2e_request_latency_seconds", "histogram", "From arrival to the end, of each request."),
    Family(
        "request_queue_time_seconds",
        "histogram",
        "From arrival to the first step with it, of each request; to its end if there was none.",
    ),
    Family(
        "request_prefill_time_seconds",
        "histogram",
        "From the first step with it to the first token, of each request that has one.",
    ),
    Family(
        "request_decode_time_seconds",
        "histogram",
        "From the first token to the last, of each request that has one.",
    ),
    Family(
        "request_inference_time_seconds",
        "histogram",
        "From the first step with it to the last token, of each request that has one.",
    ),
    Family("request_prompt_tokens", "histogram", "Tokens of the prompt, of each request that has ended."),
    Family(
        "request_generation_tokens",
        "histogram",
        "Tokens generated, by all choices together, of each request that has ended.",
    ),
    Family("request_params_n", "histogram", "The parameter n, of each request that has ended."),
    Family(
        "request_params_max_tokens",
        "histogram",
        "The parameter max_tokens, of each request that has ended and had it.",
    ),
    Family("iteration_tokens_total", "histogram", "Tokens computed in one step, drafts included."),
    Family("step_seconds", "histogram", "Duration of one step."),
    Family("prompt_tokens", "counter", "Tokens of prompts of requests that have begun, cached ones too."),
    Family(
        "generation_tokens",
        "counter",
        "Tokens generated. What a stop text takes away, and beams that are not returned, do not count.",
    ),
    Family("request_success", "counter", "Choices that have ended, by reason.", ("finished_reason",)),
    Family("num_preemptions", "counter", "Times that a sequence had to let its blocks go."),
    Family("prefix_cache_queries", "counter", "Known tokens of sequences looked for in the prefix cache."),
    Family("prefix_cache_hits", "counter", "Tokens found there."),
    Family("spec_decode_num_drafts", "counter", "Times that tokens were guessed ahead for a sequence."),
    Family("spec_decode_num_draft_tokens", "counter", "Tokens guessed ahead."),
    Family("spec_decode_num_accepted_tokens", "counter", "Of these, the right ones."),
    Family("steps", "counter", "Steps begun."),
    Family("kv_evictions", "counter", "Cached blocks evicted."),
    Family("kv_copies", "counter", "Blocks copied because somebody wrote to a shared one."),
    Family("num_requests_running", "gauge", "Sequences that hold blocks."),
    Family("num_requests_waiting", "gauge", "Sequences that wait for their turn."),
    Family("kv_cache_usage_perc", "gauge", "Fraction of the pool's blocks that are in use; 1 is all."),
    Family(
        "kv_blocks",
        "gauge",
        "Blocks of the pool: free, cached (held by nobody, can be found), held by one, shared by several.",
        ("state",),
    ),
    Family("kv_pinned_blocks", "gauge", "Blocks that a copy in flight reads or writes."),
    Family("kv_tier_blocks", "gauge", "Blocks of each memory tier: free, cached, used.", ("tier", "state")),
    Family("kv_waste_ratio", "gauge", "Fraction of the slots in block tables that no token fills."),
    Family("kv_sharing_ratio", "gauge", "Table entries per used block; 1 when nothing is shared."),
    Family("kv_scatter_ratio", "gauge", "Fraction of table entries that do not follow the one before."),
    Family("kv_peak_blocks", "gauge", "Most blocks that were ever in use in a step."),
    Family(
        "cache_config_info",
        "gauge",
        "Always 1; how the cache is set up.",
        ("block_size", "cache_dtype", "num_gpu_blocks", "block_bytes", "enable_prefix_caching"),
    ),
    Family(
        "http_requests",
        "counter",
        'Answers, by method, route and status; the status of a client that left before is "left".',
        ("method", "endpoint", "status"),
    ),
    Family(
        "http_request_duration_seconds",
        "histogram",
        "From a request to the end of its answer.",
        ("endpoint",),
    ),
    Family("requests_rejected", "counter", "Requests for an output that were refused.", ("reason",)),
)
