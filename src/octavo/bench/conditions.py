"""What must stay the same while a journal grows, or its parts could not be compared."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from octavo import _native
from octavo.core.errors import OctavoError
from octavo.weights.sources import resolve

_END_BYTES: Final = 1 << 20  # of each end of a file: all of a large one would take as long as loading it
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
    """Of the files of a model, or of one file: their names, sizes, first and last MiB.

    Raises:
        OctavoError: one cannot be read.
    """
    files = [path]
    if path.is_dir():
        files = sorted({file for pattern in _MODEL_FILES for file in path.glob(pattern)})
    found = hashlib.sha256()
    for file in files:
        try:
            size = file.stat().st_size
            # A renamed file is the same model; in a directory a name says what a file is for.
            name = file.name if path.is_dir() else ""
            found.update(f"{name}\0{size}\0".encode())
            with file.open("rb") as content:
                found.update(content.read(_END_BYTES))
                content.seek(max(0, size - _END_BYTES))
                found.update(content.read(_END_BYTES))
        except OSError as error:
            raise OctavoError(f"cannot read {file}: {error.strerror}") from error
    return found.hexdigest()[:16]
