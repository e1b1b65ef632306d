"""A block, and the node that names its content: each knows the other, while there are both.

A *frame* is a numbered piece of KV memory; frame 0 is the null block and belongs to nobody. A *block* is what
a group of layers remembers of ``block_size`` consecutive tokens; it occupies one frame or several.
"""

Tokens = bytes  # token ids, ``hashing.TOKEN_BYTES`` each


class Block:
    """``block_size`` tokens of one group: the frames that hold them and who holds on to them.

    Attributes:
        group: number of the group of layers.
        frames: block ids in the pool, one per table of the group.
        owners: tables that point here.
        pins: copies in flight from or to here.
        node: the block's name in the prefix index, or None.
    """

    __slots__ = ("frames", "group", "newer", "node", "older", "owners", "pins")

    def __init__(self, group: int, frames: tuple[int, ...]) -> None:
        self.group = group
        self.frames = frames
        self.owners = 0
        self.pins = 0
        self.node: Node | None = None
        self.older = self.newer = self

    def __repr__(self) -> str:
        name = self.node.name.hex()[:8] if self.node else "unnamed"
        return (
            f"Block(group={self.group}, frames={self.frames}, owners={self.owners}, pins={self.pins}, {name})"
        )


class Node:
    """A block's content: its tokens, after those of its parent.

    Attributes:
        block: where the content lies now, or None.
        num_tips: live sequences whose last published block this is.
    """

    __slots__ = ("block", "children", "name", "num_tips", "parent", "tokens")

    def __init__(self, name: bytes, parent: "Node | None", tokens: Tokens) -> None:
        self.name = name
        self.parent = parent
        self.tokens = tokens
        self.block: Block | None = None
        self.children: list[Node] = []
        self.num_tips = 0


class Root(Node):
    """The empty prefix of one salt."""

    __slots__ = ("salt",)

    def __init__(self, name: bytes, salt: str) -> None:
        super().__init__(name, None, b"")
        self.salt = salt
