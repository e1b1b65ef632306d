"""``octavo generate``: continue prompts, all at once."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli import options
from octavo.cli.native import native_isa
from octavo.cli.terminal import visible
from octavo.core.display import counted
from octavo.core.errors import InvalidRequest, OctavoError
from octavo.core.sampling import SamplingParams

if TYPE_CHECKING:
    from octavo.core.request import CompletionOutput, RequestOutput
    from octavo.engine.llm import LLM

_LINE_PARAMS = frozenset(field.name for field in dataclasses.fields(SamplingParams))


def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Texts to continue.", show_default=False)
    ] = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            help='Lines of JSON: {"prompt": text or ids, "max_tokens": ..., ...}; "-" is standard input.',
        ),
    ] = None,
    model: options.Model = options.DEFAULT_MODEL,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate at most.")] = 64,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    n: options.NumSamples = 1,
    beams: options.Beams = None,
    json_schema: options.JsonSchema = None,
    regex: options.Regex = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")
    ] = False,
    chat: Annotated[
        bool,
        typer.Option("--chat/--raw", help="Ask each prompt as a user's message, or continue it as it is."),
    ] = False,
    block_size: options.BlockSize = "16",
    kv_memory: options.KVMemory = None,
    kv_dtype: options.KVDtype = "auto",
    activations: options.Activations = "auto",
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_context: options.MaxContext = None,
    prefix_cache: options.PrefixCache = True,
    speculative: options.Speculative = None,
    record: options.Record = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each prompt's cached prefix ended where it did.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
    config: options.Config = None,
) -> None:
    """Continue prompts. All of them run together and share what their beginnings have in common."""
    common: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "stop": stop or (),
        "ignore_eos": ignore_eos,
        "n": n,
        "structured_outputs": options.parse_structured(json_schema, regex),
    }
    if beams is not None:
        common |= {"use_beam_search": True, "best_of": beams}
    jobs: list[tuple[str | list[int], SamplingParams]] = [
        (p, SamplingParams(**common)) for p in prompts or ()
    ]
    if file is not None:
        jobs += _read_jobs(file, common)
    if not jobs:
        raise typer.BadParameter("give at least one prompt, or --file", param_hint="PROMPTS")
    from octavo.engine.llm import LLM

    with LLM(
        model,
        block_size=options.parse_block_size(block_size),
        kv_memory=kv_memory,
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineConfig
        activations=activations,  # type: ignore[arg-type]
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_context=max_context,
        prefix_cache=prefix_cache,
        speculative=speculative,  # type: ignore[arg-type]
        record=record,
    ) as llm:
        inputs = [_chat_prompt(llm, p) if chat and isinstance(p, str) else p for p, _ in jobs]
        start = time.monotonic()
        outputs = llm.generate(inputs, [params for _, params in jobs])
        elapsed_s = time.monotonic() - start
        if as_json:
            for output in outputs:
                found = _as_dict(output)
                if explain:
                    found["prefix"] = llm.explain(output.request_id)._asdict()
                print(json.dumps(found, ensure_ascii=False))
        else:
            _show(llm, [p for p, _ in jobs], outputs, elapsed_s, explain=explain)
    failed = [f"prompt {i}: {o.error}" for i, o in enumerate(outputs) if o.error is not None]
    if failed:
        raise OctavoError("; ".join(failed))


def _read_jobs(file: Path, common: dict[str, Any]) -> list[tuple[str | list[int], SamplingParams]]:
    """Prompts of a JSON-lines file; what a line does not say comes from the command line."""
    name = "standard input" if str(file) == "-" else str(file)
    try:
        if str(file) == "-" and sys.stdin is None:
            raise OSError("it is closed")
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"cannot read {name}: {error}", param="file") from error
    jobs = []
    # A line of JSON may hold other separators raw, such as U+2028; only a newline ends it.
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if line.strip():
            try:
                jobs.append(_read_job(line, common))
            except (ValueError, OctavoError) as error:
                raise InvalidRequest(f"{name}, line {number}: {error}", param="file") from error
    return jobs


def _read_job(line: str, common: dict[str, Any]) -> tuple[str | list[int], SamplingParams]:
    try:
        job = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON: {error}") from error
    if not isinstance(job, dict) or "prompt" not in job:
        raise InvalidRequest('expected an object with "prompt"')
    prompt = job.pop("prompt")
    if not isinstance(prompt, (str, list)) or not prompt:
        raise InvalidRequest('"prompt" must be a non-empty text or a non-empty list of token ids')
    if unknown := sorted(job.keys() - _LINE_PARAMS):
        raise InvalidRequest(f"unknown parameter {unknown[0]!r}; known are {', '.join(sorted(_LINE_PARAMS))}")
    return prompt, SamplingParams(**{**common, **job})


def _chat_prompt(llm: "LLM", text: str) -> list[int]:
    return llm.encode_chat([{"role": "user", "content": text}])


def _as_dict(output: "RequestOutput") -> dict[str, Any]:
    result: dict[str, Any] = {
        "prompt_token_ids": output.prompt_token_ids,
        **_completion(output.outputs[0]),
        "num_cached_tokens": output.num_cached_tokens,
    }
    if len(output.outputs) > 1:
        result["outputs"] = [_completion(completion) for completion in output.outputs]
    if output.error is not None:
        result["error"] = output.error
    return result


def _completion(completion: "CompletionOutput") -> dict[str, Any]:
    result: dict[str, Any] = {
        "token_ids": completion.token_ids,
        "text": completion.text,
        "finish_reason": completion.finish_reason,
    }
    if completion.cumulative_logprob is not None:
        result["cumulative_logprob"] = completion.cumulative_logprob
    if completion.logprobs is not None:
        result["logprobs"] = [
            {token_id: dataclasses.asdict(found) for token_id, found in entry.items()}
            for entry in completion.logprobs
        ]
    return result


def _show(
    llm: "LLM",
    prompts: list[str | list[int]],
    outputs: list["RequestOutput"],
    elapsed_s: float,
    *,
    explain: bool,
) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for prompt, output in zip(prompts, outputs, strict=True):
        shown = prompt if isinstance(prompt, str) else f"[{counted(len(prompt), 'token id')}]"
        for completion in output.outputs:
            console.print(
                Text(visible(shown, sys.stdout), style="bold"),
                Text(visible(completion.text, sys.stdout)),
                sep="",
            )
        counts = " + ".join(str(len(c.token_ids)) for c in output.outputs)
        reasons = ", ".join(dict.fromkeys(c.finish_reason for c in output.outputs))
        details = f"{counted(counts, 'token')}, {reasons}"
        if output.num_cached_tokens:
            details += f", {counted(output.num_cached_tokens, 'prompt token')} from the cache"
        if explain:
            details += f"; {llm.explain(output.request_id)}"
        console.print(Text(f"[{details}]\n", style="dim"))
    console.print(Text(summary(llm, outputs, elapsed_s), style="cyan"))
    if explain:
        console.print(Text(str(llm.memory()), style="cyan"))


def summary(llm: "LLM", outputs: list["RequestOutput"], elapsed_s: float) -> str:
    """What a run of ``generate`` did, in four lines."""
    num_prompt = sum(len(o.prompt_token_ids) for o in outputs)
    num_new = sum(len(c.token_ids) for o in outputs for c in o.outputs)
    ttfts = sorted(o.metrics.ttft_s for o in outputs if o.metrics.ttft_s is not None)
    ttft = (
        f"{1e3 * ttfts[len(ttfts) // 2]:.0f} ms median, {1e3 * ttfts[-1]:.0f} ms worst" if ttfts else "none"
    )
    stats = llm.engine.scheduler.stats()
    sizes = llm.capacity.block_sizes_text
    return "\n".join(
        (
            f"{counted(len(outputs), 'prompt')}, {counted(num_prompt, 'prompt token')}, "
            f"{counted(num_new, 'new token')} in {elapsed_s:.2f} s: "
            f"{num_new / max(elapsed_s, 1e-9):.1f} tokens/s",
            f"Time to first token: {ttft}",
            f"KV blocks of {sizes} tokens: {stats.peak_blocks} used at once of "
            f"{llm.capacity.num_blocks:,} ({llm.capacity.num_tokens:,} tokens fit), "
            f"{stats.peak_shared_blocks} of them shared by several prompts",
            f"Instruction set: {native_isa() or 'none, this is NumPy'}",
        )
    )
