"""All requests at once through an engine in this process, stepped here: throughput without a server."""

import threading
import time
from collections.abc import Sequence

from octavo.bench.experiment import WARM_UP, ExperimentSettings, Findings, Progress
from octavo.bench.interrupts import heard
from octavo.bench.load.engine_target import facts_of
from octavo.bench.load.exchange import INTERRUPTED, REFUSED, Exchange
from octavo.bench.load.generator import LoadResult, Record
from octavo.bench.load.memory_use import MemoryWatch
from octavo.bench.load.rss import peak_rss_bytes
from octavo.bench.metrics.summary import summarize
from octavo.bench.workloads.item import WorkItem, Workload, digest, prompt_as_json
from octavo.core.errors import OctavoError
from octavo.core.sampling import SamplingParams
from octavo.engine.generation import Generation
from octavo.engine.llm import LLM


def run_offline(llm: LLM, workload: Workload, settings: ExperimentSettings, progress: Progress) -> Findings:
    """Like ``experiment.run_experiment``, with ``LLM``'s own loop: submit all, step until all is done.

    Time to first token here is the wait of a request that came with all the others; there are no gaps between
    chunks, as nothing is streamed.
    """
    findings = Findings(is_streamed=False)
    stop = threading.Event()
    with heard(stop.set):
        if settings.warm_up:
            items = workload.items(WARM_UP)[: settings.warm_up]
            progress.begin("Warming up", len(items))
            _run(llm, items, progress, stop, MemoryWatch())
        for repeat in range(settings.repeats):
            if stop.is_set():
                break
            items = workload.items(repeat)
            findings.digest = findings.digest or digest(items)
            progress.begin(f"Repeat {repeat + 1} of {settings.repeats}", len(items))
            watch = MemoryWatch()
            result = _run(llm, items, progress, stop, watch)
            findings.results.append(result)
            summary = summarize(result, settings.slo) | {"itl_s": None, "memory": watch.as_dict()}
            summary["counts"]["tokens_per_chunk"] = None
            findings.repeats.append(summary)
        findings.interrupted = stop.is_set()
    findings.peak_rss_bytes = peak_rss_bytes()
    return findings


def _run(
    llm: LLM, items: Sequence[WorkItem], progress: Progress, stop: threading.Event, watch: MemoryWatch
) -> LoadResult:
    engine, block_bytes = llm.engine, llm.capacity.block_bytes
    waiting: list[tuple[WorkItem, Generation]] = []
    records: list[Record] = []
    watch.begin(facts_of(engine, block_bytes))
    start_s = time.perf_counter()
    for item in items:
        try:
            generation = _prepare(llm, item)
            engine.submit(generation)
        except OctavoError as error:
            exchange = Exchange(sent_s=start_s, closed_s=time.perf_counter())
            exchange.fail(REFUSED, str(error))
            records.append(Record(item, start_s, exchange))
            progress.done(records[-1])
        else:
            waiting.append((item, generation))
    while waiting and not stop.is_set():
        engine.step()
        if any(generation.finished for _, generation in waiting):
            over = [pair for pair in waiting if pair[1].finished]
            waiting = [pair for pair in waiting if not pair[1].finished]
            for item, generation in over:
                records.append(_record(item, generation, start_s))
                progress.done(records[-1])
        watch.see(facts_of(engine, block_bytes))
    for item, generation in waiting:
        engine.abort(generation)
        records.append(_record(item, generation, start_s))
        records[-1].exchange.fail(INTERRUPTED)
    watch.end(facts_of(engine, block_bytes))
    records.sort(key=lambda record: record.item.index)
    return LoadResult(records, start_s, max(r.exchange.closed_s for r in records), 0)


def _prepare(llm: LLM, item: WorkItem) -> Generation:
    params = SamplingParams(temperature=0, max_tokens=item.max_tokens, ignore_eos=True)
    told = prompt_as_json(item.prompt)
    if isinstance(item.prompt, tuple):
        told = llm.encode_chat(told)  # type: ignore[arg-type]  # messages
    return llm.prepare(told, params)  # type: ignore[arg-type]


def _record(item: WorkItem, generation: Generation, start_s: float) -> Record:
    """Of a request that is over: its first token and its last are known, on the clock of ``perf_counter``."""
    output = generation.output()
    metrics, num_tokens = output.metrics, len(output.outputs[0].token_ids)
    end_s = metrics.finished_s or time.perf_counter()
    exchange = Exchange(sent_s=start_s, closed_s=end_s, finish_s=end_s, finish_had_output=True)
    if metrics.first_token_s is not None and num_tokens:
        exchange.chunk_s.append(metrics.first_token_s)
        exchange.chunk_tokens.append(1)
        if num_tokens > 1:
            exchange.chunk_s.append(end_s)
            exchange.chunk_tokens.append(num_tokens - 1)
    exchange.prompt_tokens = len(output.prompt_token_ids)
    exchange.output_tokens, exchange.cached_tokens = num_tokens, output.num_cached_tokens
    exchange.finish_reason = output.outputs[0].finish_reason
    if output.error is not None:
        exchange.fail(REFUSED, output.error)
    return Record(item, start_s, exchange)
