"""What must stay the same while a journal grows, or its parts could not be compared."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from octavo import _native
from octavo.core.errors import OctavoError
from octavo.weights.sources import resolve

# Of a directory, what a model is loaded from. Reports and journals may lie beside it.
_MODEL_FILES: Final = ("*.safetensors*", "config.json", "generation_config.json", "*token*.json", "*.jinja")


def conditions(head: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Of the machine and the model, for the settings of a journal.

    Args:
        head: of the report (``report.head.head``).
        model: as a user calls it; it is fetched if need be.

    Raises:
        ModelNotFound, CorruptModel: there is no such model, or it could not be fetched.
        OctavoError: its files cannot be read.
    """
    machine = head["machine"]
    return {
        "octavo": head["octavo"],
        "cpu": machine["cpu"],
        "isa": machine["isa"],
        "usable_cores": _native.usable_cores(),
        "model_digest": model_digest(resolve(model)),
    }


def model_digest(path: Path) -> str:
    """Of the files of a model, or of one file: names and all bytes.

    A sample would miss a changed byte, and times change with a copy. What a journal is for takes minutes at
    least and loads the model again and again; to read it once more takes about a second for each GB.

    Raises:
        OctavoError: one cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = sorted({file for pattern in _MODEL_FILES for file in path.glob(pattern)})
    found = hashlib.sha256()
    for file in files:
        # A renamed file is the same model; in a directory a name says what a file is for.
        name = file.name if path.is_dir() else ""
        try:
            with file.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise OctavoError(f"cannot read {file}: {error.strerror}") from error
        found.update(f"{name}\0{digest}\0".encode())
    return found.hexdigest()[:16]
