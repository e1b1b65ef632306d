"""Options that say what is asked, and when."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from octavo.cli.completion import one_of

ArrivalNames = Literal["poisson", "bursty", "trace", "closed", "at-once"]
ObjectiveNames = Literal["throughput", "latency", "balanced"]
WorkloadName = Literal["synthetic", "repetitive", "chat", "prompts", "mooncake", "azure"]

Kind = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        help="synthetic, repetitive, chat (several turns), or from --file: prompts, mooncake, azure.",
        autocompletion=one_of(WorkloadName),
    ),
]
File = Annotated[Path | None, typer.Option("--file", help="The trace, or the prompts: JSON lines or CSV.")]
Requests = Annotated[int, typer.Option("--requests", "-n", min=1, help="Requests of one repeat.")]
InputLen = Annotated[
    str,
    typer.Option(
        help="Prompt tokens: 128, uniform:64,256, lognormal:200,0.8 (median, sigma), empirical:FILE."
    ),
]
OutputLen = Annotated[str, typer.Option(help="Output tokens, in the same way.")]
SharedPrefix = Annotated[
    str,
    typer.Option(
        help="Tokens that prompts begin with in common, before those of --input-len: 1024, or a tree like "
        "512x1,256x4."
    ),
]
PhraseLen = Annotated[int, typer.Option(min=1, help="repetitive: tokens that a prompt repeats.")]
Turns = Annotated[str, typer.Option(help="chat: turns of a conversation, like --input-len.")]
SystemLen = Annotated[int, typer.Option(min=0, help="chat: words of the system message all share.")]
Pause = Annotated[float, typer.Option(min=0, help="chat: seconds from an answer to the next turn.")]
Scale = Annotated[float, typer.Option(help="Arrival times are multiplied by this: 2 is half as fast.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many requests of --file.")]
MaxPrompt = Annotated[int | None, typer.Option("--max-prompt-tokens", min=1, help="Cut longer prompts.")]
MaxOutput = Annotated[int | None, typer.Option("--max-output-tokens", min=1, help="Ask for no more.")]
VocabSize = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=2**31 - 1,
        help="Made-up token ids are below this. Default: 1,000 to 9,999, which most models have.",
    ),
]
WorkloadSeed = Annotated[int, typer.Option("--seed", min=0, help="Of lengths, contents and arrivals.")]
AsText = Annotated[
    bool, typer.Option("--text", help="Made-up prompts are words (about a token each), not token ids.")
]
ArrivalKind = Annotated[
    str | None,
    typer.Option(
        "--arrivals",
        help="poisson, bursty, trace, closed, at-once. Default: poisson if there is a --rate, trace if "
        "--file says when, else closed.",
        autocompletion=one_of(ArrivalNames),
    ),
]
Rate = Annotated[float | None, typer.Option(help="Requests per second, on average.")]
Burstiness = Annotated[
    float, typer.Option(help="bursty: variance of the gaps; 1 is Poisson, more is burstier.")
]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", min=1, help="closed: users.")]
SloText = Annotated[
    str | None, typer.Option("--slo", help="What counts as well served, e.g. ttft=0.5,tpot=50ms,e2e=10.")
]
Chat = Annotated[bool, typer.Option("--chat", help="Use the chat endpoint.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """What is asked: a group for ``grouped``."""

    workload: Kind = "synthetic"
    file: File = None
    requests: Requests = 64
    input_len: InputLen = "128"
    output_len: OutputLen = "64"
    shared_prefix: SharedPrefix = "0"
    phrase_len: PhraseLen = 16
    turns: Turns = "4"
    system_len: SystemLen = 0
    pause: Pause = 0.0
    scale: Scale = 1.0
    limit: Limit = None
    max_prompt_tokens: MaxPrompt = None
    max_output_tokens: MaxOutput = None
    vocab_size: VocabSize = None
    as_text: AsText = False
    seed: WorkloadSeed = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalOptions:
    """When it is asked: a group for ``grouped``."""

    arrivals: ArrivalKind = None
    rate: Rate = None
    burstiness: Burstiness = 4.0
    concurrency: Concurrency = 8
