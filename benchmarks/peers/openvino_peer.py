"""OpenVINO GenAI's continuous batching, which has no server on PyPI: a program drives the library."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model_files import as_openvino
from peer import Load, Peer
from workshop import INSIDE, OFFLINE, Workshop

from octavo.bench.compare.program import Program

VERSION: Final = "2026.4.1.0"
_ENVIRONMENT: Final = "openvino"
_KV_GIB: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenVino(Peer):
    """The library.

    Attributes:
        weights: "int4" or "int8".
    """

    weights: str

    def install(self, workshop: Workshop, model: Path) -> None:
        workshop.install(_ENVIRONMENT, [f"openvino-genai=={VERSION}"])
        as_openvino(workshop, model, self.weights)

    def program(self, workshop: Workshop, model: Path, load: Load) -> Program:
        folder = str(as_openvino(workshop, model, self.weights))
        command = [workshop.python(_ENVIRONMENT), str(INSIDE / "openvino_driver.py"), folder]
        command += [str(load.threads), str(max(16, load.num_requests)), str(_KV_GIB)]
        return Program(facts=self.facts(), command=command, protocol="lines", env=OFFLINE)


def peers() -> list[Peer]:
    """One for each precision."""
    weights = {"int4": "int4 weights (groups of 64), int8 embedding", "int8": "int8 weights (per channel)"}
    return [
        OpenVino(
            name=f"openvino {name}",
            version=f"openvino-genai {VERSION}",
            precision=f"{text}, its own choice of KV",
            settings=f"continuous batching, prefix cache, KV of {_KV_GIB} GiB, latency hint",
            note="no server: the library by pipes, token ids, ignore_eos of its own",
            weights=name,
        )
        for name, text in weights.items()
    ]
