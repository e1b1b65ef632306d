"""Traces: one span for each request, the caller's trace goes on, and nothing of the prompt is in them."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from toy import ToyEngine

from octavo.core.errors import InvalidConfig
from octavo.core.sampling import SamplingParams
from octavo.server.settings import ServerSettings
from octavo.server.telemetry.observers import Observers
from octavo.server.telemetry.tracing import Tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def toy() -> ToyEngine:
    return ToyEngine(max_num_seqs=2)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(toy, exporter):
    tracing = Tracing(SimpleSpanProcessor(exporter), model_name="toy")
    toy.engine.observer = Observers(tracing)
    yield tracing
    tracing.close()


def recorded(tracing, exporter, generation, headers=None):
    """The request's span, and its children by name."""
    exporter.clear()
    tracing.record(generation, headers=headers or {}, endpoint="completions", response_id="cmpl-1")
    spans = exporter.get_finished_spans()
    (top,) = [s for s in spans if s.kind == SpanKind.SERVER]
    children = {s.name: s for s in spans if s is not top}
    assert len(children) == len(spans) - 1
    for child in children.values():
        assert child.parent.span_id == top.context.span_id
        assert child.context.trace_id == top.context.trace_id
        assert top.start_time <= child.start_time <= child.end_time <= top.end_time
    return top, children


def test_a_request_is_a_span_with_three_parts(toy, tracing, exporter):
    generation = toy.submit(list(range(20)), max_tokens=9, n=2, temperature=0.5, seed=3, ignore_eos=True)
    toy.run()
    top, children = recorded(tracing, exporter, generation)
    assert top.name == "text_completion toy"
    assert top.parent is None
    assert dict(top.attributes) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "toy",
        "gen_ai.response.model": "toy",
        "gen_ai.response.id": "cmpl-1",
        "gen_ai.response.finish_reasons": ("length", "length"),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 18,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": generation.request.params.top_k,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.seed": 3,
        "gen_ai.request.choice.count": 2,
        "octavo.request_id": 0,
        "octavo.num_preemptions": 0,
    }
    assert list(children) == ["queue", "prefill", "decode"]
    took_s = (top.end_time - top.start_time) / 1e9
    assert took_s == pytest.approx(generation.finished_s - generation.arrival_s, abs=1e-3)
    ttft_s = (children["prefill"].end_time - top.start_time) / 1e9
    assert ttft_s == pytest.approx(generation.first_token_s - generation.arrival_s, abs=1e-3)
    assert top.status.status_code == StatusCode.UNSET
    assert top.resource.attributes["service.name"] == "octavo"


def test_the_callers_trace_goes_on(toy, tracing, exporter):
    generation = toy.submit([1, 2], max_tokens=2)
    toy.run()
    top, _ = recorded(tracing, exporter, generation, {"traceparent": PARENT})
    assert f"{top.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{top.parent.span_id:016x}" == PARENT.split("-")[2]
    for bad in ("", "x", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"):
        top, _ = recorded(tracing, exporter, generation, {"traceparent": bad})
        assert top.parent is None
    # A caller that does not sample gets no spans.
    exporter.clear()
    unsampled = PARENT[:-2] + "00"
    tracing.record(generation, headers={"traceparent": unsampled}, endpoint="chat", response_id="x")
    assert exporter.get_finished_spans() == ()


def test_one_that_never_began_only_waited(toy, tracing, exporter):
    running = [toy.submit([i, 2], max_tokens=50, ignore_eos=True) for i in range(2)]
    waiting = toy.submit([7], max_tokens=50)
    toy.step()
    toy.engine.abort(waiting)
    top, children = recorded(tracing, exporter, waiting)
    assert list(children) == ["queue"]
    assert top.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert top.attributes["gen_ai.usage.output_tokens"] == 0
    toy.engine.abort(running[0])
    _, children = recorded(tracing, exporter, running[0])
    assert list(children) == ["queue", "prefill", "decode"]


def test_a_failure_is_marked(exporter):
    def fail(inputs, logits) -> None:
        logits[:] = float("nan")

    toy = ToyEngine(hook=fail)
    tracing = Tracing(SimpleSpanProcessor(exporter), model_name="toy")
    toy.engine.observer = tracing
    generation = toy.submit([1, 2], max_tokens=2)
    toy.run()
    top, children = recorded(tracing, exporter, generation)
    assert top.status.status_code == StatusCode.ERROR
    assert list(children) == ["queue", "prefill"]


def test_no_text_is_in_a_span(toy, tracing, exporter):
    params = SamplingParams(max_tokens=3, stop=["secret"], logit_bias={5: 1.0})
    generation = toy.engine.prepare([5, 6, 7], params, prompt="a secret", salt="secret")
    toy.engine.submit(generation)
    toy.run()
    top, children = recorded(tracing, exporter, generation)
    shown = "".join(span.to_json() for span in (top, *children.values()))
    assert "secret" not in shown


def test_spans_reach_a_collector(toy):
    got = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        for endpoint in (url, f"{url}/", f"{url}/v1/traces"):
            tracing = Tracing.over_http(endpoint, model_name="toy")
            generation = toy.submit([1, 2], max_tokens=2)
            toy.run()
            tracing.record(generation, headers={}, endpoint="chat", response_id="chatcmpl-5")
            tracing.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert [path for path, _ in got] == ["/v1/traces"] * 3
    assert all(b"gen_ai.usage.input_tokens" in body for _, body in got)


@pytest.mark.parametrize("missing", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"])
def test_without_the_packages_it_says_what_to_install(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidConfig, match=r"pip install 'octavo\[otel\]'"):
        Tracing.over_http("http://127.0.0.1:1", model_name="toy")


@pytest.mark.parametrize("endpoint", ["", "collector:4318", "ftp://x", "http://"])
def test_settings_refuse_what_is_no_address(endpoint):
    with pytest.raises(InvalidConfig, match="otlp_endpoint"):
        ServerSettings(otlp_endpoint=endpoint)
    assert ServerSettings(otlp_endpoint="http://127.0.0.1:4318").otlp_endpoint
