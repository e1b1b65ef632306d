"""Traces for OpenTelemetry: one span for each prompt that was answered, with its queue, prefill and decode.

A span is made when all is over, from times that are kept anyway, so running requests pay nothing. Nothing of
the prompt or the output is in it. OpenTelemetry is an extra and is imported only when traces are asked for.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from octavo.core.errors import InvalidConfig
from octavo.engine.generation import Generation
from octavo.engine.observing import StepReport

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

MAX_BEGUN: Final = 4096
TRACES_PATH: Final = "/v1/traces"
OPERATIONS: Final = {"chat": "chat", "completions": "text_completion"}  # by endpoint
_PARAMETERS: Final = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "n": "choice.count",
}


class Tracing:
    """An observer that keeps when requests began, and makes spans of those that are over.

    Args:
        processor: takes the spans.

    Raises:
        InvalidConfig: the packages for it are not installed.
    """

    def __init__(self, processor: "SpanProcessor", *, model_name: str) -> None:
        _check_installed()
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        resource = Resource.create({"service.name": "octavo", "service.version": version("octavo")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("octavo.server", version("octavo"))
        self._model_name = model_name
        self._begun: OrderedDict[int, float] = OrderedDict()  # by request id, on the monotonic clock

    @staticmethod
    def over_http(endpoint: str, *, model_name: str) -> "Tracing":
        """Send spans to a collector in batches, from a thread of its own.

        Args:
            endpoint: URL of the collector, with or without the path of traces.

        Raises:
            InvalidConfig: the packages for it are not installed.
        """
        _check_installed()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if urlsplit(endpoint).path in ("", "/"):
            endpoint = endpoint.rstrip("/") + TRACES_PATH
        exporter = OTLPSpanExporter(endpoint=endpoint)
        return Tracing(BatchSpanProcessor(exporter), model_name=model_name)

    def close(self) -> None:
        """Send what is left, which may take seconds if the collector does not answer."""
        self._provider.shutdown()

    # In the engine's thread

    def arrived(self, generation: Generation) -> None:
        """A request was queued."""

    def stepped(self, report: StepReport) -> None:
        """A step is done."""
        for request in report.admitted:
            self._begun.setdefault(request.turn.request_id, report.started_s)
        while len(self._begun) > MAX_BEGUN:
            self._begun.popitem(last=False)

    def finished(self, generation: Generation) -> None:
        """A request's output is complete."""

    # In the event loop

    def record(
        self, generation: Generation, *, headers: Mapping[str, str], endpoint: str, response_id: str
    ) -> None:
        """Make the span of a request that is over.

        Args:
            headers: of the HTTP request, names in lower case; the caller's trace goes on if it says so.
            endpoint: "chat" or "completions".
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        request = generation.request
        operation = OPERATIONS[endpoint]
        offset_ns = time.time_ns() - time.monotonic_ns()

        def unix_ns(monotonic_s: float) -> int:
            return offset_ns + round(monotonic_s * 1e9)

        end_s = time.monotonic() if generation.finished_s is None else generation.finished_s
        context = TraceContextTextMapPropagator().extract(headers)
        reasons = [choice.request.finish_reason or "abort" for choice in generation.choices]
        span = self._tracer.start_span(
            f"{operation} {self._model_name}",
            context=context,
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "octavo",
                "gen_ai.request.model": self._model_name,
                "gen_ai.response.model": self._model_name,
                "gen_ai.response.id": response_id,
                "gen_ai.response.finish_reasons": reasons,
                "gen_ai.usage.input_tokens": request.prompt_len,
                "gen_ai.usage.output_tokens": generation.num_output_tokens,
                "gen_ai.usage.cache_read.input_tokens": request.num_cached_tokens,
                "octavo.request_id": request.request_id,
                "octavo.num_preemptions": generation.num_preemptions,
                **_parameters(request.params),
            },
            start_time=unix_ns(generation.arrival_s),
        )
        inside = set_span_in_context(span, context)
        for name, start_s, stop_s in self._phases(generation, end_s):
            child = self._tracer.start_span(name, context=inside, start_time=unix_ns(start_s))
            child.end(unix_ns(stop_s))
        if "error" in reasons:
            span.set_attribute("error.type", "error")
            span.set_status(Status(StatusCode.ERROR))
        span.end(unix_ns(end_s))

    def _phases(self, generation: Generation, end_s: float) -> list[tuple[str, float, float]]:
        """What it went through: name, begin, end."""
        first_s = generation.first_token_s
        begun_s = self._begun.get(generation.request.turn.request_id)
        if begun_s is None:
            return [("queue", generation.arrival_s, end_s)]
        phases = [("queue", generation.arrival_s, max(begun_s, generation.arrival_s))]
        phases.append(("prefill", begun_s, end_s if first_s is None else first_s))
        if first_s is not None:
            phases.append(("decode", first_s, end_s))
        return phases


def _parameters(params: Any) -> dict[str, Any]:
    values = {name: getattr(params, field) for field, name in _PARAMETERS.items()}
    return {f"gen_ai.request.{name}": value for name, value in values.items() if value is not None}


def _check_installed() -> None:
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        raise InvalidConfig(
            f"otlp_endpoint: traces need packages that are missing ({error}): pip install 'octavo[otel]'"
        ) from error
