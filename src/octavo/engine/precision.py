"""In which precision a model runs, in a few words."""

from pathlib import Path

from octavo.engine.llm import LLM
from octavo.models.loading import load_hollow_model


def precision_of(llm: LLM) -> str:
    """Of weights (by what most of their bytes are), activations and KV: "Q4_1 weights, ..."."""
    kv = "bfloat16" if llm.config.kv_dtype == "auto" else llm.config.kv_dtype
    activations = llm.config.activations
    how = "" if activations == "auto" else f", {activations} activations"
    return f"{llm.weight_types} weights{how}, {kv} KV"


def weights_of(path: Path) -> str:
    """The encodings of a model that is not loaded; reads headers only, and has the errors of loading."""
    return load_hollow_model(path).checkpoint.weight_types
