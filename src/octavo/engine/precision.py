"""In which precision a model runs, in a few words."""

from collections import Counter
from pathlib import Path

from octavo.engine.llm import LLM
from octavo.models.loading import load_hollow_model


def precision_of(llm: LLM) -> str:
    """Of weights (by what most of their bytes are), activations and KV: "Q4_1 weights, ..."."""
    kv = "bfloat16" if llm.config.kv_dtype == "auto" else llm.config.kv_dtype
    activations = llm.config.activations
    how = "" if activations == "auto" else f", {activations} activations"
    return f"{weights_of(llm.path)} weights{how}, {kv} KV"


def weights_of(path: Path) -> str:
    """Encodings of a model's file that hold at least a tenth of its bytes, the largest first."""
    bytes_of: Counter[str] = Counter()
    for stored in load_hollow_model(path).checkpoint.stored.values():
        bytes_of[stored.type_name] += stored.num_bytes
    total = bytes_of.total()
    return "/".join(name for name, num in bytes_of.most_common() if num >= total / 10)
