"""The workload and the arrivals that options describe."""

from typing import TYPE_CHECKING, Any, get_args

from octavo.cli.bench.workload_options import ArrivalOptions, WorkloadName, WorkloadOptions
from octavo.core.errors import InvalidConfig, shown

if TYPE_CHECKING:
    from octavo.bench.load.arrivals import ArrivalPlan
    from octavo.bench.workloads.contents import Vocabulary
    from octavo.bench.workloads.item import Workload


def make_workload(
    options: WorkloadOptions, *, is_chat: bool | None = False, most_ids: int | None = None
) -> "Workload":
    """The workload of these options.

    Args:
        is_chat: whether requests go to a chat endpoint; None is no endpoint: prompts of a file in all forms.
        most_ids: token ids that the model has, if that is known.

    Raises:
        InvalidConfig, InvalidRequest: an option or a file is not as it should be.
    """
    from octavo.bench.workloads.conversations import Conversations
    from octavo.bench.workloads.lengths import parse_lengths
    from octavo.bench.workloads.limits import TraceLimits
    from octavo.bench.workloads.prompts_file import read_prompts
    from octavo.bench.workloads.synthetic import Synthetic, parse_prefix_tree
    from octavo.bench.workloads.traces import read_azure, read_mooncake

    kind, seed = options.workload, options.seed
    vocabulary = make_vocabulary(options.vocab_size, most=most_ids)
    if kind not in get_args(WorkloadName):
        raise InvalidConfig(f"workload={shown(kind)}: choose one of {', '.join(get_args(WorkloadName))}")
    inputs = parse_lengths("input_len", options.input_len)
    outputs = parse_lengths("output_len", options.output_len)
    if kind in ("synthetic", "repetitive"):
        return Synthetic(
            num_requests=options.requests,
            input_len=inputs,
            output_len=outputs,
            prefixes=parse_prefix_tree(options.shared_prefix),
            phrase_len=options.phrase_len if kind == "repetitive" else None,
            form="chat" if is_chat else "text" if options.as_text else "tokens",
            vocabulary=vocabulary,
            seed=seed,
        )
    if kind == "chat":
        return Conversations(
            num_sessions=options.requests,
            turns=parse_lengths("turns", options.turns),
            input_len=inputs,
            output_len=outputs,
            system_len=options.system_len,
            pause_s=options.pause,
            as_chat=bool(is_chat),
            seed=seed,
        )
    file = options.file
    if file is None:
        raise InvalidConfig(f"workload={kind}: give the file with --file")
    limits = TraceLimits(
        scale=options.scale,
        limit=options.limit,
        max_prompt_tokens=options.max_prompt_tokens,
        max_output_tokens=options.max_output_tokens,
    )
    if kind == "prompts":
        return read_prompts(file, limits, max_tokens=outputs.sample(_rng(), 1)[0], is_chat=is_chat)
    if is_chat:
        raise InvalidConfig(
            f"workload={kind}: traces are token ids, which chats do not take; leave --chat out"
        )
    read = read_mooncake if kind == "mooncake" else read_azure
    return read(file, limits, vocabulary, seed)


def make_plan(options: ArrivalOptions, *, seed: int, has_arrivals: bool) -> "ArrivalPlan":
    """When the requests of a workload come.

    Args:
        has_arrivals: whether the workload says so itself.

    Raises:
        InvalidConfig: they cannot come in this way.
    """
    from octavo.bench.load.arrivals import ArrivalPlan

    kind = options.arrivals
    if kind is None:
        kind = "poisson" if options.rate is not None else "trace" if has_arrivals else "closed"
    if kind == "trace" and not has_arrivals:
        raise InvalidConfig("arrivals=trace: this workload does not say when its requests come")
    return ArrivalPlan(
        kind=kind,  # type: ignore[arg-type]  # it checks
        rate=options.rate,
        burstiness=options.burstiness,
        concurrency=options.concurrency,
        seed=seed,
    )


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
