"""Four ways of using a model, as workloads: prompts are token ids, end tokens are ignored, all come at once.

They are those of ``octavo bench scenes``, which measures the library alone.
"""

from dataclasses import dataclass
from typing import Final

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.scenes import SCENES as OF_LIBRARY
from octavo.bench.scenes import Scene
from octavo.bench.workloads.contents import Vocabulary
from octavo.bench.workloads.item import Workload
from octavo.bench.workloads.lengths import Fixed
from octavo.bench.workloads.synthetic import PrefixLevel, Synthetic
from octavo.core.errors import InvalidConfig, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A workload, how its requests come, and which rate says how fast it was done.

    Attributes:
        name: short; "" is the only one.
        num_requests, longest: at most so many at once, each of so many tokens, prompt and output together;
            None if that is not known. For servers that must be told beforehand.
        rate: "output_tokens_per_s" or "prompt_tokens_per_s": which says how fast it was, where requests do
            not come at their own times.
    """

    workload: Workload
    plan: ArrivalPlan
    name: str = ""
    description: str = ""
    num_requests: int | None = None
    longest: int | None = None
    rate: str = "output_tokens_per_s"


SCENES: Final = {scene.name: scene for scene in OF_LIBRARY}


def as_task(scene: Scene, *, seed: int = 0) -> Task:
    """New requests in each round, and other ones than those of any other scene: none is found in a cache."""
    seed = seed * len(SCENES) + list(SCENES).index(scene.name)
    prefixes = (PrefixLevel(scene.shared_len, 1),) if scene.shared_len else ()
    return Task(
        workload=Synthetic(
            num_requests=scene.num_requests,
            input_len=Fixed(scene.own_len),
            output_len=Fixed(scene.output_len),
            prefixes=prefixes,
            vocabulary=Vocabulary(),
            seed=seed,
        ),
        plan=ArrivalPlan(kind="at-once", seed=seed),
        name=scene.name,
        description=scene.description,
        num_requests=scene.num_requests,
        longest=scene.shared_len + scene.own_len + scene.output_len,
        rate="prompt_tokens_per_s" if scene.counts_prompt else "output_tokens_per_s",
    )


def parse_scenes(text: str) -> list[Scene]:
    """``"a,c"`` becomes these scenes.

    Raises:
        InvalidConfig: there is no such scene.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SCENES:
            raise InvalidConfig(f"scene={shown(name)}: choose among {', '.join(SCENES)}")
    return [SCENES[name] for name in dict.fromkeys(names)]
