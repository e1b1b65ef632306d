"""An opened model: its metadata and its tensors, still lying in the files they came from."""

import mmap
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from octavo.core.errors import CorruptModel, ModelNotFound
from octavo.weights.tensor import Encoding, WeightTensor


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file declares it, before any conversion.

    Attributes:
        type_name: the file's own name of the element type, such as ``"Q6_K"`` or ``"BF16"``.
        shape: outermost dimension first.
        data: uint8 [bytes], a window of the memory map.
    """

    type_name: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def num_bytes(self) -> int:
        """Bytes that the tensor takes in its file."""
        return int(self.data.nbytes)


class LazyTensors(Mapping[str, WeightTensor]):
    """Tensors by name, built when asked for and not kept: ask once, hold what you need.

    Most are windows of the memory map and cost nothing. Types without a kernel are converted to float32 at
    this moment, so only those that a model uses are ever converted.
    """

    def __init__(
        self, stored: Mapping[str, StoredTensor], build: Callable[[str, StoredTensor], WeightTensor]
    ) -> None:
        self._stored = stored
        self._build = build

    def __getitem__(self, name: str) -> WeightTensor:
        return self._build(name, self._stored[name])

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def hollow(self) -> "LazyTensors":
        """The same, but of matrices encoding and shape only; one row at most is read of each."""

        def build(name: str, stored: StoredTensor) -> WeightTensor:
            num_rows = prod(stored.shape[:-1])
            if len(stored.shape) < 2 or not num_rows:
                return self._build(name, stored)
            row = stored.data[: stored.num_bytes // num_rows]
            built = self._build(name, StoredTensor(stored.type_name, (1, stored.shape[-1]), row))
            return WeightTensor(name, built.encoding, stored.shape, np.empty((num_rows, 0), np.uint8))

        return LazyTensors(self._stored, build)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model's files, opened and checked.

    Attributes:
        path: the ``.gguf`` file, or the directory of a safetensors model.
        metadata: the keys and values of the GGUF header as plain Python (arrays are lists), or the parsed
            ``config.json``.
        tensors: every tensor by the file's own name. Asking for one raises UnsupportedModel if Octavo cannot
            read its type.
        stored: what the files declare about the same tensors, for reports: nothing is converted.
    """

    path: Path
    kind: Literal["gguf", "safetensors"]
    metadata: Mapping[str, object]
    tensors: LazyTensors
    stored: Mapping[str, StoredTensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes that all tensors take in their files."""
        return sum(stored.num_bytes for stored in self.stored.values())

    @property
    def weight_types(self) -> str:
        """Encodings that hold at least a tenth of the bytes, the largest first: ``"Q4_1/Q8_0"``."""
        bytes_of: Counter[str] = Counter()
        for stored in self.stored.values():
            bytes_of[stored.type_name] += stored.num_bytes
        total = bytes_of.total()
        return "/".join(name for name, num in bytes_of.most_common() if num >= total / 10)

    def hollow(self) -> "Checkpoint":
        """The same without the bytes of matrices; see ``LazyTensors.hollow``."""
        return replace(self, tensors=self.tensors.hollow())


def map_file(path: Path) -> mmap.mmap:
    """Map a file for reading; the map lives as long as any array over it.

    Raises:
        ModelNotFound: the file cannot be opened, or is not a regular file.
        CorruptModel: it is empty.
    """
    try:
        # Before opening: that alone waits for a writer if it is a pipe, and does who knows what to a device.
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a directory has the better message
            raise ModelNotFound(f"cannot open {path}: not a regular file")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelNotFound(f"cannot open {path}: {error.strerror}") from error
    except ValueError as error:  # an empty file, or a name with a null byte
        raise CorruptModel(f"cannot map {path}: {error}") from error


def as_weight(
    name: str, encoding: Encoding, shape: tuple[int, ...], data: npt.NDArray[np.uint8]
) -> WeightTensor:
    """Lay flat bytes out as the rows of a WeightTensor, without copying.

    A tensor of more than two dimensions has the rows of all its leading dimensions; a vector or a scalar
    has one row.
    """
    return WeightTensor(name, encoding, shape, data.reshape(prod(shape[:-1]), -1))
