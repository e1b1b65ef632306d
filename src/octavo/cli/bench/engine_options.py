"""Options of an engine that a measurement loads into its own process."""

from dataclasses import asdict, dataclass
from typing import Any

from octavo.cli import options


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """A group for ``grouped``."""

    block_size: options.BlockSize = "16"
    kv_memory: options.KVMemory = None
    kv_dtype: options.KVDtype = "auto"
    threads: options.Threads = None
    max_num_seqs: options.MaxNumSeqs = 64
    max_step_tokens: options.MaxStepTokens = 512
    max_chunk_tokens: options.MaxChunkTokens = None
    max_context: options.MaxContext = None
    prefix_cache: options.PrefixCache = True
    speculative: options.Speculative = None

    def settings(self) -> dict[str, Any]:
        """As ``LLM`` takes them.

        Raises:
            InvalidConfig: the block size is neither a number nor sizes by layers.
        """
        return asdict(self) | {"block_size": options.parse_block_size(self.block_size)}
