"""The same weights in the forms that peers read."""

from pathlib import Path
from typing import Final

from workshop import INSIDE, Workshop

TORCH: Final = "torch==2.13.0"
TRANSFORMERS: Final = ("transformers", "5.24.0")
_CONVERTER: Final = "openvino-convert"


def install_transformers(workshop: Workshop) -> None:
    """Needed to read GGUF files, and a peer itself."""
    version = TRANSFORMERS[1]
    workshop.install("transformers", [TORCH, f"transformers=={version}", "gguf", "accelerate", "safetensors"])


def as_bfloat16(workshop: Workshop, model: Path) -> Path:
    """A folder with safetensors in bfloat16, as dequantized from the file, and the tokenizer."""
    install_transformers(workshop)
    return workshop.make(
        f"{model.stem}-bf16",
        lambda made: workshop.run(
            [workshop.python("transformers"), str(INSIDE / "dequantize.py"), str(model), str(made)]
        ),
    )


def as_openvino(workshop: Workshop, model: Path, weights: str) -> Path:
    """A folder in OpenVINO's form, with weights of "int4" (asymmetric, groups of 64) or "int8"."""
    source = as_bfloat16(workshop, model)

    def build(made: Path) -> None:
        # Its description requires torchvision, which is of no use here, and on some indexes is there only
        # for GPUs: then nothing of it can be imported.
        workshop.install(
            _CONVERTER, [TORCH, "optimum-intel==2.2.0", "openvino==2026.4.1"], without=["torchvision"]
        )
        command = [str(workshop.environment(_CONVERTER) / "bin" / "optimum-cli"), "export", "openvino"]
        command += ["--model", str(source), "--task", "text-generation-with-past"]
        command += ["--weight-format", weights]
        if weights == "int4":
            command += ["--group-size", "64", "--ratio", "1.0"]
        workshop.run([*command, str(made)])

    return workshop.make(f"{model.stem}-openvino-{weights}", build)
