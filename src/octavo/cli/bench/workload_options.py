"""Options that say what is asked, and the workload that they describe."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

import typer

from octavo.cli.completion import one_of
from octavo.core.errors import InvalidConfig, shown

if TYPE_CHECKING:
    from octavo.bench.workloads.contents import Vocabulary
    from octavo.bench.workloads.item import Workload

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
    typer.Option(help="Tokens that prompts begin with in common: 1024, or a tree like 512x1,256x4."),
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

# Parameters that matter for each workload, and for each way of arriving. All others of these are refused.
_MADE_UP: Final = frozenset({"requests", "input_len", "output_len", "shared_prefix", "vocab_size", "as_text"})
_OF_FILE: Final = frozenset({"file", "limit", "max_prompt_tokens", "max_output_tokens"})
_OF_WORKLOAD: Final[Mapping[str, frozenset[str]]] = {
    "synthetic": _MADE_UP,
    "repetitive": _MADE_UP | {"phrase_len"},
    "chat": frozenset({"requests", "input_len", "output_len", "turns", "system_len", "pause"}),
    "prompts": _OF_FILE | {"output_len"},
    "mooncake": _OF_FILE | {"vocab_size"},
    "azure": _OF_FILE | {"vocab_size"},
}
_OF_ARRIVALS: Final[Mapping[str, frozenset[str]]] = {
    "poisson": frozenset({"rate"}),
    "bursty": frozenset({"rate", "burstiness"}),
    "trace": frozenset({"scale"}),
    "closed": frozenset({"concurrency"}),
    "at-once": frozenset(),
    "trace or closed": frozenset({"scale", "concurrency"}),  # prompts of a file that may say when
}
# All that say which requests come, and when.
OF_REQUESTS: Final = frozenset({"workload", "arrivals"}).union(*_OF_WORKLOAD.values(), *_OF_ARRIVALS.values())


def unused(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Parameters of a command that have no effect beside the others, and with what they have none.

    Args:
        parameters: values by name; commands without "arrivals" have their own.
    """
    kind = parameters["workload"]
    is_chat, as_text = parameters.get("chat", False), parameters.get("as_text", False)
    used = _OF_WORKLOAD.get(kind)
    found: dict[str, str] = {}
    if used is not None:
        found = dict.fromkeys(frozenset().union(*_OF_WORKLOAD.values()) - used, f"--workload {kind}")
        if "as_text" in used and is_chat:
            found |= dict.fromkeys(("as_text", "vocab_size"), "--chat")
        elif "as_text" in used and as_text:
            found["vocab_size"] = "--text"
    arrivals = _arrivals_of(parameters)
    if arrivals is not None and arrivals in _OF_ARRIVALS:
        others = frozenset().union(*_OF_ARRIVALS.values()) - _OF_ARRIVALS[arrivals]
        found |= dict.fromkeys(others, f"{arrivals} arrivals")
    return found


def refuse_unused(context: typer.Context, found: Mapping[str, str] | None = None) -> None:
    """That no option was given which has no effect. Those of a --config file may be for other workloads.

    Args:
        found: parameters without effect, and with what they have none; None are those of ``unused``.

    Raises:
        InvalidConfig: one was; names it.
    """
    if found is None:
        found = unused(context.params)
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if name in found and source is not None and source.name == "COMMANDLINE":
            raise InvalidConfig(f"{parameter.opts[0]} has no effect with {found[name]}; leave it out")


def _arrivals_of(parameters: Mapping[str, Any]) -> str | None:
    """How requests come; None if the command has no such choice."""
    if "arrivals" not in parameters:
        return None
    if parameters["arrivals"] is not None:
        return str(parameters["arrivals"])
    if parameters["rate"] is not None:
        return "poisson"
    kind = parameters["workload"]
    return {"prompts": "trace or closed", "mooncake": "trace", "azure": "trace"}.get(kind, "closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """What the options of any workload have in common: a group for ``grouped``."""

    file: File = None
    requests: Requests = 64
    input_len: InputLen = "128"
    output_len: OutputLen = "64"
    shared_prefix: SharedPrefix = "0"
    phrase_len: PhraseLen = 16
    limit: Limit = None
    max_prompt_tokens: MaxPrompt = None
    max_output_tokens: MaxOutput = None
    seed: WorkloadSeed = 0


def make_workload(*, is_chat: bool, vocabulary: "Vocabulary", **options: Any) -> "Workload":
    """The workload of the options above.

    Args:
        is_chat: whether requests go to a chat endpoint.
        vocabulary: for made-up token ids.

    Raises:
        InvalidConfig, InvalidRequest: an option or a file is not as it should be.
    """
    from octavo.bench.workloads.conversations import Conversations
    from octavo.bench.workloads.lengths import parse_lengths
    from octavo.bench.workloads.limits import TraceLimits
    from octavo.bench.workloads.prompts_file import read_prompts
    from octavo.bench.workloads.synthetic import Synthetic, parse_prefix_tree
    from octavo.bench.workloads.traces import read_azure, read_mooncake

    kind = options["kind"]
    if kind not in get_args(WorkloadName):
        raise InvalidConfig(f"workload={shown(kind)}: choose one of {', '.join(get_args(WorkloadName))}")
    inputs = parse_lengths("input_len", options["input_len"])
    outputs = parse_lengths("output_len", options["output_len"])
    seed = options["seed"]
    if kind in ("synthetic", "repetitive"):
        return Synthetic(
            num_requests=options["requests"],
            input_len=inputs,
            output_len=outputs,
            prefixes=parse_prefix_tree(options["shared_prefix"]),
            phrase_len=options["phrase_len"] if kind == "repetitive" else None,
            form="chat" if is_chat else "text" if options["as_text"] else "tokens",
            vocabulary=vocabulary,
            seed=seed,
        )
    if kind == "chat":
        return Conversations(
            num_sessions=options["requests"],
            turns=parse_lengths("turns", options["turns"]),
            input_len=inputs,
            output_len=outputs,
            system_len=options["system_len"],
            pause_s=options["pause"],
            as_chat=is_chat,
            seed=seed,
        )
    file = options["file"]
    if file is None:
        raise InvalidConfig(f"workload={kind}: give the file with --file")
    limits = TraceLimits(
        scale=options["scale"],
        limit=options["limit"],
        max_prompt_tokens=options["max_prompt_tokens"],
        max_output_tokens=options["max_output_tokens"],
    )
    if kind == "prompts":
        return read_prompts(file, limits, max_tokens=outputs.sample(_rng(), 1)[0])
    if is_chat:
        raise InvalidConfig(
            f"workload={kind}: traces are token ids, which chats do not take; leave --chat out"
        )
    read = read_mooncake if kind == "mooncake" else read_azure
    return read(file, limits, vocabulary, seed)


def make_vocabulary(size: int | None, *, most: int | None = None) -> "Vocabulary":
    """Token ids for made-up prompts, of a model with ``most`` of them if that is known.

    Raises:
        InvalidConfig: the model has fewer than ``size``.
    """
    from octavo.bench.workloads.contents import USUAL_VOCAB, Vocabulary

    if size is not None:
        if most is not None and size > most:
            raise InvalidConfig(f"vocab_size={size}: the model has {most:,} token ids; leave it out, or less")
        return Vocabulary(0, size)
    return Vocabulary.of_size(USUAL_VOCAB if most is None else most)


def _rng() -> Any:
    import numpy as np

    return np.random.default_rng(0)
