"""A live sequence: its tokens, its names, its tables, and how far it has come."""

from array import array

from octavo.paging.block_table import BlockTable
from octavo.paging.explain import PrefixExplanation
from octavo.paging.hashing import NameChain


class Sequence:
    """State of one sequence.

    Attributes:
        tokens: known token ids.
        explanation: why its cached prefix ended where it did.
        num_computed: leading tokens whose KV is written.
        granted: positions from ``num_computed`` to here may be written by this sequence.
        fast_end: positions below can be granted without looking at any table, and nothing is in ``changed``
            while this is beyond ``num_computed``.
        mark_end: up to here, more computed tokens complete no block.
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
        self.explanation = explanation
        self.changed: dict[tuple[int, int], None] = {}
        self.start_at(0)

    def fork(self, seq_id: int) -> "Sequence":
        """A sequence with the same tokens and tables, whose entries are all new to its row."""
        twin = Sequence(
            seq_id=seq_id,
            tokens=self.tokens[:],
            salt=self.salt,
            chain=self.chain.copy(),
            tables=[table.copy() for table in self.tables],
            explanation=self.explanation,
        )
        twin.start_at(self.num_computed)
        twin.retell()
        self.fast_end = self.num_computed
        return twin

    def retell(self) -> None:
        """Count every table entry as changed: the sequence gets a row that has seen none of them."""
        for group, table in enumerate(self.tables):
            self.changed.update(dict.fromkeys((group, i) for i in range(table.first, len(table.blocks))))
        self.fast_end = self.num_computed

    def start_at(self, num_computed: int) -> None:
        """Begin, or begin anew, with nothing granted beyond the computed tokens."""
        self.num_computed = self.granted = self.fast_end = self.mark_end = num_computed

    def update_mark_end(self) -> None:
        """Find how far the sequence may come before a block becomes complete and can be published."""
        end = self.granted
        for table in self.tables:
            if table.tip is not None:
                last = (table.num_published + 1) * table.spec.block_size - 1
                end = min(end, last)
        self.mark_end = end
