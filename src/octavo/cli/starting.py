"""What a server says of itself when it starts."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import octavo
from octavo.cli.native import native_isa, usable_cores
from octavo.core.display import counted, printable
from octavo.core.units import format_bytes

if TYPE_CHECKING:
    from octavo.engine.llm import LLM
    from octavo.server.settings import ServerSettings

_PAGE, _API, _DOCS = "/", "/v1", "/openapi.json"


def describe(llm: "LLM", settings: "ServerSettings") -> dict[str, Any]:
    """All there is to say before it listens, ready for JSON."""
    capacity, config = llm.capacity, llm.config
    return {
        "version": octavo.__version__,
        "model": settings.model_name,
        "path": str(llm.path),
        "family": llm.spec.family,
        "weight_bytes": llm.weight_bytes,
        "kv_dtype": "bfloat16" if config.kv_dtype == "auto" else config.kv_dtype,
        "kv_bytes_per_token": round(capacity.plan.bytes_per_token),
        "kv_pool_bytes": capacity.num_bytes,
        "num_blocks": capacity.num_blocks,
        "block_sizes": list(dict.fromkeys(capacity.block_sizes)),
        "num_tokens": capacity.num_tokens,
        "context_len": capacity.context_len,
        "context_reason": capacity.context_reason,
        "num_full_sequences": capacity.num_sequences(capacity.context_len),
        "isa": native_isa(),
        "threads": config.threads or usable_cores(),
        "max_num_seqs": config.max_num_seqs,
        "max_step_tokens": config.max_step_tokens,
        "max_waiting": config.max_waiting,
        "needs_api_key": bool(settings.api_keys),
    }


def first_line(settings: "ServerSettings") -> str:
    """Said before the model is loaded, which may take a while."""
    return f"Octavo {octavo.__version__} serves {printable(settings.model_name)}"


def lines(found: dict[str, Any]) -> list[str]:
    """The description for people."""
    sizes = "/".join(map(str, found["block_sizes"]))
    pool = format_bytes(found["kv_pool_bytes"])
    waiting = "no limit to those" if found["max_waiting"] is None else f"{found['max_waiting']:,}"
    return [
        f"  Model     {found['family']}, {printable(found['path'])}",
        f"  Weights   {format_bytes(found['weight_bytes'])}",
        f"  KV cache  {pool}: {counted(found['num_blocks'], 'block')} of {sizes} tokens, "
        f"{format_bytes(found['kv_bytes_per_token'])} per token as {found['kv_dtype']}",
        f"  Fits      {found['num_tokens']:,} tokens: {counted(found['num_full_sequences'], 'sequence')} of "
        f"{found['context_len']:,} ({found['context_reason']})",
        f"  Compute   {found['isa']}, {counted(found['threads'], 'thread')}",
        f"  Limits    {counted(found['max_num_seqs'], 'sequence')} at once, {waiting} waiting, "
        f"{counted(found['max_step_tokens'], 'token')} per step",
    ]


def ready_lines(url: str) -> list[str]:
    """Where it listens, and how long that took."""
    return [
        f"  Page      {url}{_PAGE}",
        f"  API       {url}{_API}, described in {url}{_DOCS}",
        f"Ready in {process_age_s():.2f} s. Ctrl-C finishes what runs and ends.",
    ]


def as_json(found: dict[str, Any], url: str) -> str:
    """One line with all of it."""
    where = {"url": url, "page": url + _PAGE, "api": url + _API, "docs": url + _DOCS}
    return json.dumps({**found, **where, "start_s": round(process_age_s(), 3)})


def warning(settings: "ServerSettings") -> str:
    """What is wrong with serving strangers, if that is what this does."""
    if settings.is_local or settings.api_keys:
        return ""
    return (
        f"whoever reaches {printable(settings.host)} can use this model, without a key. "
        "Give --api-key-file FILE, or listen on this machine only (--host 127.0.0.1)"
    )


def process_age_s() -> float:
    """Seconds since the process was started, Python's own start included; to a hundredth."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
