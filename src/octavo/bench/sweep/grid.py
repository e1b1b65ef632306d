"""The points of a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from octavo.core.errors import InvalidConfig

Value = int | str
Point = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting that a sweep moves.

    Attributes:
        option: of ``octavo bench serve``.
        label, column, phrase: for reports: in plots, above a column of a table, in a sentence.
    """

    name: str
    option: str
    label: str
    column: str
    phrase: str


AXES: Final = (
    Axis("block_size", "--block-size", "block size in tokens", "block", "blocks of {}"),
    Axis("context", "--input-len", "prompt in tokens", "prompt", "prompts of {} tokens"),
    Axis("concurrency", "--concurrency", "users at once", "users", "{} at once"),
    Axis("shared_prefix", "--shared-prefix", "shared prefix in tokens", "shared", "{} shared"),
    Axis("max_step_tokens", "--max-step-tokens", "step budget in tokens", "step", "steps of {}"),
    Axis("kv_dtype", "--kv-dtype", "KV type", "KV type", "{} KV"),
)
AXIS: Final = {axis.name: axis for axis in AXES}


def make_points(values: Mapping[str, Sequence[Value]], *, one_at_a_time: bool) -> list[Point]:
    """All combinations; or the first value of each axis, and those that differ from it in one axis.

    Points whose shared prefix leaves nothing of the prompt are left out.

    Raises:
        InvalidConfig: nothing is left.
    """
    names = [axis.name for axis in AXES]
    if one_at_a_time:
        base = {name: values[name][0] for name in names}
        found = [base]
        for name in names:
            found += [{**base, name: value} for value in values[name][1:]]
    else:
        found = [dict(zip(names, each, strict=True)) for each in product(*(values[name] for name in names))]
    possible = [point for point in found if int(point["shared_prefix"]) < int(point["context"])]
    if not possible:
        raise InvalidConfig("no point is left: shared_prefix must be less than context")
    return possible


def key_of(point: Mapping[str, Any]) -> tuple[Value, ...]:
    """What tells points apart."""
    return tuple(point[axis.name] for axis in AXES)


def shown(point: Mapping[str, Any], names: Sequence[str]) -> str:
    """``"blocks of 16, prompts of 512 tokens"``: those of the axes that are named."""
    return ", ".join(AXIS[name].phrase.format(point[name]) for name in names)


def arguments(point: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Of the command that measures a point."""
    shared = int(point["shared_prefix"])
    found = ["bench", "serve", "--model", str(settings["model"]), "--arrivals", "closed"]
    for axis in AXES:
        value = int(point["context"]) - shared if axis.name == "context" else point[axis.name]
        found += [axis.option, str(value)]
    # A user who has nothing to ask would not be one.
    num_requests = int(point["concurrency"]) * int(settings["requests_per_user"])
    rows = max(64, int(point["concurrency"]))
    found += ["--requests", str(num_requests), "--output-len", str(settings["output_len"])]
    found += ["--repeats", str(settings["repeats"]), "--seed", str(settings["seed"])]
    found += ["--max-num-seqs", str(rows)]
    for name in ("threads", "kv_memory"):
        if settings.get(name) is not None:
            found += [f"--{name.replace('_', '-')}", str(settings[name])]
    return [*found, "--no-ceilings", "--json"]
