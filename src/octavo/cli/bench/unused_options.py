"""Options that have no effect beside the others: refused, since whoever gives one expects something of it."""

from collections.abc import Mapping
from typing import Any, Final

import typer

from octavo.core.errors import InvalidConfig

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
    if "arrivals" not in parameters:
        found["scale"] = "requests that are all there at once"
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
