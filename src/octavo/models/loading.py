"""From a path to a model: open the file, read what it is, take its weights."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.core.errors import CorruptModel, ModelNotFound
from octavo.models.gguf_config import spec_from_gguf
from octavo.models.hf_config import spec_from_config
from octavo.models.spec import DecoderSpec
from octavo.models.weights import DecoderWeights, take_weights
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.gguf import open_gguf
from octavo.weights.safetensors import open_safetensors
from octavo.weights.sources import naming_repair


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model as its files have it: what it is, its weights, still encoded and mapped, and the files."""

    spec: DecoderSpec
    weights: DecoderWeights
    checkpoint: Checkpoint


def load_model(path: Path) -> LoadedModel:
    """Open a ``.gguf`` file or a directory with config.json and safetensors.

    Raises:
        ModelNotFound: nothing is there.
        CorruptModel: a file is malformed, or a tensor is missing or has the wrong shape.
        UnsupportedModel: the model is not one Octavo can run.
    """
    return _load(path, lambda checkpoint: checkpoint)


def load_hollow_model(path: Path) -> LoadedModel:
    """The same with matrices whose rows hold no bytes: reads headers only, and has the same errors.

    A matrix of a type that loading converts has the encoding that it would have then.
    """
    return _load(path, Checkpoint.hollow)


def _load(path: Path, prepare: Callable[[Checkpoint], Checkpoint]) -> LoadedModel:
    if not path.exists():
        raise ModelNotFound(f"no model at {path}")
    with naming_repair(path):
        checkpoint = prepare(open_safetensors(path) if path.is_dir() else open_gguf(path))
        spec = read_spec(checkpoint)
        return LoadedModel(spec, take_weights(checkpoint, spec), checkpoint)


def read_spec(checkpoint: Checkpoint) -> DecoderSpec:
    """What kind of decoder the checkpoint holds; see ``hf_config`` and ``gguf_config`` for the errors."""
    if checkpoint.kind == "gguf":
        return spec_from_gguf(checkpoint.metadata, checkpoint.tensors)
    return spec_from_config(checkpoint.metadata, _generation_config(checkpoint.path))


def _generation_config(path: Path) -> dict[str, object]:
    """generation_config.json beside the weights, which may know more tokens that end a sequence."""
    file = (path if path.is_dir() else path.parent) / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptModel(f"{file}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CorruptModel(f"{file}: not a JSON object")
    return found
