"""Metrics: all families from the start, sums that clients can make too, and a dashboard that finds them."""

import asyncio
import json
import re
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from feed_case import ToyLLM
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from toy import ToyEngine, random_prompts, toy_greedy, toy_text

import octavo
from octavo import LLM, SamplingParams
from octavo.core.errors import EngineFailed
from octavo.engine.async_engine import AsyncEngine
from octavo.server.routes.metrics import router
from octavo.server.telemetry.families import FAMILIES, Histogram, token_counts
from octavo.server.telemetry.metrics import CacheFacts, Metrics
from octavo.server.telemetry.observers import Observers

DOCS = Path(octavo.__file__).parents[2] / "docs"
ENDLESS = {"ignore_eos": True}
HISTOGRAMS = [family.name for family in FAMILIES if family.kind == "histogram" and not family.labels]


def metrics_of(toy: ToyEngine, **options) -> Metrics:
    metrics = Metrics(
        toy.scheduler,
        context_len=256,
        facts=CacheFacts("8", "bfloat16", 4096, True),
        model_name="toy",
        **options,
    )
    toy.engine.observer = Observers(metrics.engine)
    return metrics


def scrape(metrics: Metrics) -> dict[str, float]:
    """Samples by name without prefix; with their own labels, if they have any."""
    values = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
            shown = "{" + ",".join(f"{k}={v}" for k, v in sorted(labels.items())) + "}" if labels else ""
            values[sample.name.partition(":")[2] + shown] = sample.value
    return values


def test_all_families_are_there_from_the_start():
    metrics = metrics_of(ToyEngine())
    values = scrape(metrics)
    for family in FAMILIES:
        suffix = {"counter": "_total", "gauge": "", "histogram": "_count"}[family.kind]
        assert any(re.fullmatch(re.escape(family.name + suffix) + r"(\{.*\})?", name) for name in values)
    moving = {n: v for n, v in values.items() if re.search(r"_(total|count|sum)(\{|$)", n)}
    assert len(moving) > 50
    assert set(moving.values()) == {0}
    assert values["kv_blocks{state=free}"] == 199
    assert values["kv_cache_usage_perc"] == 0


class Client:
    """Counts what a client sees."""

    def __init__(self, toy: ToyEngine) -> None:
        self.toy = toy
        self.generations = []

    def submit(self, prompt: list[int], **params):
        self.generations.append(self.toy.submit(prompt, **params))
        return self.generations[-1]

    def check(self, values: dict[str, float]) -> None:
        outputs = [g.output() for g in self.generations]
        choices = [[c.request for c in g.choices] for g in self.generations]
        lengths = [sum(r.num_output_tokens for r in requests) for requests in choices]
        assert values["generation_tokens_total"] == sum(lengths)
        assert values["request_generation_tokens_sum"] == sum(lengths)
        began = [o for o in outputs if o.metrics.first_token_s is not None or self.was_admitted(o.request_id)]
        assert values["prompt_tokens_total"] == sum(len(o.prompt_token_ids) for o in began)
        for name in ("stop", "length", "abort", "error"):
            told = sum(r.finish_reason == name for requests in choices for r in requests)
            assert values[f"request_success_total{{finished_reason={name}}}"] == told, name
        count = len(outputs)
        for name in (
            "e2e_request_latency_seconds",
            "request_queue_time_seconds",
            "request_prompt_tokens",
            "request_generation_tokens",
            "request_params_n",
        ):
            assert values[f"{name}_count"] == count, name
        ttft = [o.metrics.ttft_s for o in outputs if o.metrics.ttft_s is not None]
        assert values["time_to_first_token_seconds_count"] == len(ttft)
        assert values["time_to_first_token_seconds_sum"] == pytest.approx(sum(ttft))
        ends = [o.metrics.finished_s - o.metrics.arrival_s for o in outputs]
        assert values["e2e_request_latency_seconds_sum"] == pytest.approx(sum(ends))
        for name in ("prefill", "decode", "inference"):
            assert values[f"request_{name}_time_seconds_count"] == len(ttft), name
        parts = sum(values[f"request_{n}_time_seconds_sum"] for n in ("prefill", "decode"))
        assert values["request_inference_time_seconds_sum"] == pytest.approx(parts)
        sampled = [
            r.num_output_tokens
            for g, requests in zip(self.generations, choices, strict=True)
            for r in requests
            if not r.params.use_beam_search
        ]
        gaps = sum(n - 1 for n in sampled if n)
        assert values["inter_token_latency_seconds_count"] == gaps
        assert values["time_per_output_token_seconds_count"] == gaps
        assert values["request_time_per_output_token_seconds_count"] == sum(n > 1 for n in sampled)
        assert values["request_params_n_sum"] == sum(g.request.params.n for g in self.generations)
        with_limit = [p for g in self.generations if (p := g.request.params.max_tokens) is not None]
        assert values["request_params_max_tokens_sum"] == sum(with_limit)
        assert values["request_params_max_tokens_count"] == len(with_limit)
        assert values["iteration_tokens_total_sum"] == sum(self.toy.model.step_sizes)
        assert values["iteration_tokens_total_count"] == values["steps_total"]
        assert values["step_seconds_count"] == len(self.toy.model.step_sizes)
        stats = self.toy.scheduler.stats()
        assert values["num_preemptions_total"] == stats.num_preemptions
        assert values["spec_decode_num_draft_tokens_total"] == stats.num_drafts
        assert values["spec_decode_num_accepted_tokens_total"] == stats.num_drafts_accepted
        for name in HISTOGRAMS:
            assert values[f"{name}_bucket{{le=+Inf}}"] == values[f"{name}_count"]

    def was_admitted(self, request_id: int) -> bool:
        return self.toy.scheduler.explain(request_id) is not None


def test_known_requests_add_up():
    toy = ToyEngine(max_num_seqs=4)
    metrics, client = metrics_of(toy), Client(toy)
    text = toy_text(toy_greedy([8, 9], 30))
    client.submit([1, 2, 3], max_tokens=7, **ENDLESS)
    client.submit([1, 2, 4], max_tokens=1, **ENDLESS)  # begins and ends in one step
    client.submit([5] * 20, max_tokens=9, n=3, temperature=1.0, seed=1, **ENDLESS)
    client.submit([6, 7], max_tokens=6, n=2, use_beam_search=True, **ENDLESS)
    stopped = client.submit([8, 9], max_tokens=30, stop=[text[4:6]], **ENDLESS)
    client.submit([10], max_tokens=None, **ENDLESS)
    toy.run()
    values = scrape(metrics)
    client.check(values)
    assert stopped.request.finish_reason == "stop"
    assert values["num_requests_running"] == values["num_requests_waiting"] == 0
    assert values["request_success_total{finished_reason=length}"] >= 6
    assert values["kv_peak_blocks"] > 0


@pytest.mark.parametrize("seed", range(6))
def test_any_requests_add_up(seed):
    """Samples, beams, drafts, stop texts, aborts, failures, a small pool; looked at now and then."""
    rng = np.random.default_rng(seed)

    def fail(inputs, logits) -> None:
        if len(logits) and rng.random() < 0.04:
            logits[0] = np.nan

    toy = ToyEngine(
        num_blocks=80, max_num_seqs=6, hook=fail, speculative="ngram" if seed % 2 else None, max_drafts=3
    )
    metrics, client = metrics_of(toy), Client(toy)
    for prompt in random_prompts(40, seed=seed, longest=50):
        params = {"max_tokens": int(rng.integers(1, 40)), "ignore_eos": bool(rng.random() < 0.5)}
        kind = rng.random()
        if kind < 0.2:
            params |= {"n": 3, "temperature": 1.0, "seed": 1}
        elif kind < 0.3:
            params |= {"n": 2, "use_beam_search": True}
        elif kind < 0.5:
            params |= {"stop": ["a", "e", "1"], "temperature": 1.0, "seed": int(rng.integers(100))}
        elif kind < 0.6:
            prompt = prompt[:5] * 6
        client.submit(prompt, **params)
        for _ in range(int(rng.integers(0, 6))):
            if toy.engine.has_work:
                toy.engine.step()
        if rng.random() < 0.2:
            toy.engine.abort(client.generations[int(rng.integers(len(client.generations)))])
        values = scrape(metrics)
        assert sum(v for n, v in values.items() if n.startswith("kv_blocks{")) == 79
        running = values["num_requests_running"]
        assert running == len(toy.scheduler.running)
    client.submit(prompt, max_tokens=40)
    toy.engine.abort(client.generations[-1])
    toy.run()
    values = scrape(metrics)
    client.check(values)
    reasons = {c.request.finish_reason for g in client.generations for c in g.choices}
    assert reasons >= {"stop", "length", "abort", "error"}
    assert not seed % 2 or values["spec_decode_num_drafts_total"] > 0
    assert not metrics.engine._live
    assert not metrics.engine._served


def test_requests_of_an_engine_that_broke_add_up():
    def fail(inputs, logits) -> None:
        if len(toy.model.step_sizes) == 5:
            raise RuntimeError("broken")

    toy = ToyEngine(hook=fail, max_num_seqs=2)
    metrics, client = metrics_of(toy), Client(toy)
    for i in range(4):
        client.submit([1, 2, 3 + i], max_tokens=20, **ENDLESS)
    for _ in range(4):
        toy.engine.step()
    with pytest.raises(EngineFailed):
        toy.engine.step()
    values = scrape(metrics)
    assert values["request_success_total{finished_reason=error}"] == 4
    assert values["e2e_request_latency_seconds_count"] == 4
    assert values["generation_tokens_total"] == sum(g.num_output_tokens for g in client.generations) == 8
    assert values["time_to_first_token_seconds_count"] == 2


class Slow:
    """An observer during which other threads get on."""

    def arrived(self, generation): ...

    def stepped(self, report):
        time.sleep(0.005)

    def finished(self, generation):
        time.sleep(0.005)


def test_what_a_client_has_got_is_counted():
    """Whoever scrapes after an answer finds it, even though the step goes on in another thread."""
    toy = ToyEngine()
    metrics = metrics_of(toy)
    toy.engine.observer = Observers(Slow(), metrics.engine)

    async def use() -> None:
        async with AsyncEngine(ToyLLM(toy)) as engine:
            for i in range(1, 40):
                params = SamplingParams(temperature=0.0, max_tokens=1 + i % 3, **ENDLESS)
                await engine.generate([i, 2], params)
                values = scrape(metrics)
                assert values["e2e_request_latency_seconds_count"] == i
                assert values["generation_tokens_total"] == sum(1 + k % 3 for k in range(1, i + 1))
                assert values["prompt_tokens_total"] == 2 * i

    asyncio.run(use())


def test_a_scrape_never_waits_for_a_step():
    inside, let_go = threading.Event(), threading.Event()

    def hold(inputs, logits) -> None:
        inside.set()
        assert let_go.wait(60)

    toy = ToyEngine(hook=hold)
    metrics = metrics_of(toy)
    toy.submit([1, 2, 3], max_tokens=2, **ENDLESS)
    thread = threading.Thread(target=toy.engine.step)
    thread.start()
    try:
        assert inside.wait(60)
        assert scrape(metrics)["num_requests_running"] == 1  # the step stands still meanwhile
    finally:
        let_go.set()
        thread.join()


def test_scrapes_while_the_engine_runs_are_whole():
    toy = ToyEngine(num_blocks=80, max_num_seqs=8)
    metrics = metrics_of(toy)
    stop = threading.Event()
    seen = []

    def scraping() -> None:
        while not stop.is_set():
            seen.append(scrape(metrics))

    thread = threading.Thread(target=scraping)
    thread.start()
    try:
        while len(seen) <= 3:
            for prompt in random_prompts(60, seed=9):
                toy.submit(prompt, max_tokens=20, n=2, temperature=1.0, **ENDLESS)
            toy.run()
    finally:
        stop.set()
        thread.join()
    for before, after in pairwise(seen):
        for name, value in after.items():
            if re.search(r"_(total|count|bucket|sum)(\{|$)", name) and not name.startswith("process_"):
                assert value >= before[name], name
        assert after["request_generation_tokens_sum"] <= after["generation_tokens_total"]


def test_answers_over_http():
    metrics = metrics_of(ToyEngine())
    count = metrics.http.count
    for _ in range(3):
        count("POST", "/v1/completions", 200, 0.2)
    count("POST", "/v1/chat/completions", 429, 0.001)
    count("POST", "/v1/chat/completions", 400, 0.001)
    count("POST", "/v1/completions", 0, 1.0)
    count("GET", "/v1/models", 200, 0.001)
    count("BREW", "other", 405, 0.001)
    values = scrape(metrics)
    assert values["http_requests_total{endpoint=/v1/completions,method=POST,status=200}"] == 3
    assert values["http_requests_total{endpoint=/v1/completions,method=POST,status=left}"] == 1
    assert values["http_requests_total{endpoint=other,method=other,status=405}"] == 1
    assert values["http_request_duration_seconds_sum{endpoint=/v1/completions}"] == pytest.approx(1.6)
    assert values["requests_rejected_total{reason=queue_full}"] == 1
    assert values["requests_rejected_total{reason=invalid}"] == 1
    assert sum(v for n, v in values.items() if n.startswith("requests_rejected_total")) == 2


@pytest.mark.parametrize("value", [0.0, 0.5, 1, 1.5, 2, 5, 5.1, 1e9])
def test_a_histogram_counts_like_prometheus(value):
    from prometheus_client import CollectorRegistry
    from prometheus_client import Histogram as Theirs

    registry = CollectorRegistry()
    theirs, ours = Theirs("x", "x", buckets=(1, 2, 5), registry=registry), Histogram((1, 2, 5))
    theirs.observe(value)
    ours.observe(value)
    told = {s.labels["le"]: s.value for m in registry.collect() for s in m.samples if s.name == "x_bucket"}
    assert dict(ours.buckets()) == told
    assert ours.total == value


def test_token_counts():
    assert token_counts(256) == (1, 2, 5, 10, 20, 50, 100, 200)
    assert token_counts(1) == (1,)


def test_the_route():
    metrics = metrics_of(ToyEngine(), prefix="vllm")
    app = FastAPI()
    app.include_router(router)
    app.state.octavo = SimpleNamespace(metrics=metrics)

    async def use() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            plain = await client.get("/metrics")
            assert plain.headers["content-type"].startswith("text/plain")
            assert 'vllm:num_requests_running{model_name="toy"} 0.0' in plain.text
            accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
            opened = await client.get("/metrics", headers=accept)
            assert opened.headers["content-type"].startswith("application/openmetrics-text")
            assert opened.text.endswith("# EOF\n")

    asyncio.run(use())


# Documents


def exposed() -> dict[str, str]:
    text = generate_latest(metrics_of(ToyEngine()).registry).decode()
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))


def test_the_table_of_metrics_is_complete():
    text = (DOCS / "operating.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `([^`]+)` \| (counter|gauge|histogram) \|", text, re.M))
    assert table == exposed()


def test_the_dashboard_asks_for_what_there_is():
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    names = set(exposed())
    series = names | {
        f"{name}_{suffix}"
        for name, kind in exposed().items()
        if kind == "histogram"
        for suffix in ("bucket", "sum", "count")
    }
    panels = [p for p in dashboard["panels"] if p["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    used = {name for e in expressions for name in re.findall(r"[a-z_]+:[a-z0-9_]+|process_[a-z_]+", e)}
    assert len(panels) >= 12
    assert used - series == set()
    assert len(used) > 25
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    variables = {v["name"]: v["type"] for v in dashboard["templating"]["list"]}
    assert variables["datasource"] == "datasource"
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    cells = [
        (x, y)
        for p in dashboard["panels"]
        for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
        for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)), "panels lie on each other"


def test_with_a_real_model(smollm2_path):
    with LLM(smollm2_path, kv_memory="64MiB") as llm:
        metrics = Metrics.of(llm, model_name="smollm2")
        llm.engine.observer = Observers(metrics.engine)
        began_s = time.monotonic()
        outputs = llm.generate(
            ["The sea is", "The sea is", "Ships"],
            SamplingParams(max_tokens=12, n=2, seed=1, stop=["."]),
            progress=False,
        )
        took_s = time.monotonic() - began_s
        values = scrape(metrics)
        assert values["generation_tokens_total"] == sum(len(c.token_ids) for o in outputs for c in o.outputs)
        assert values["prompt_tokens_total"] == sum(len(o.prompt_token_ids) for o in outputs)
        assert values["time_to_first_token_seconds_count"] == 3
        assert 0 < values["step_seconds_sum"] <= took_s
        text = generate_latest(metrics.registry).decode()
        assert 'cache_dtype="bfloat16"' in text
