"""A live sequence: its tokens, its names, its tables, and how far it has come."""

from array import array

from octavo.paging.block_table import BlockTable
from octavo.paging.explain import PrefixExplanation
from octavo.paging.hashing import NameChain


class Sequence:
    """State of one sequence.

    Attributes:
        tokens: known token ids.
        num_computed: leading tokens whose KV is written.
        granted: positions below may be written by this sequence.
        fast_end: positions below can be written without any change of tables.
        mark_end: up to here, more computed tokens complete no block.
        explanation: why its cached prefix ended where it did.
        changed: table entries ``(group, index)`` that changed since the last commit.
    """

    __slots__ = (
        "chain",
        "changed",
        "explanation",
        "fast_end",
        "granted",
        "mark_end",
        "num_computed",
        "salt",
        "seq_id",
        "tables",
        "tokens",
    )

    def __init__(
        self,
        *,
        seq_id: int,
        tokens: "array[int]",
        salt: str,
        chain: NameChain,
        tables: list[BlockTable],
        explanation: PrefixExplanation,
    ) -> None:
        self.seq_id = seq_id
        self.tokens = tokens
        self.salt = salt
        self.chain = chain
        self.tables = tables
        self.num_computed = 0
        self.granted = 0
        self.fast_end = 0
        self.mark_end = 0
        self.changed: dict[tuple[int, int], None] = {}
        self.explanation = explanation

    def start_at(self, num_computed: int) -> None:
        """Begin, or begin anew, with nothing granted beyond the computed tokens."""
        self.num_computed = self.granted = self.fast_end = self.mark_end = num_computed
