"""The prefix index of one group: which blocks are known by name, and how far a prompt agrees with them.

A tree per salt. A node stands for one block's tokens after its parent's; it is found by name and confirmed
by comparing parent and token ids, so two contents whose names collide can never be taken for each other.
Children are kept sorted by their tokens: the one that shares the longest run with a prompt is next to where
the prompt itself would stand.

A node outlives its block while it has children or a live sequence stands on it. That is what confirms a later
block of a sliding-window group, whose earlier ones were given back.
"""

from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass

from octavo.paging.block import Block, Node, Root, Tokens
from octavo.paging.hashing import TOKEN_BYTES, NameChain

MAX_SIBLINGS = 32  # siblings without a block that a search for a partial match passes over, on either side


@dataclass(frozen=True, slots=True)
class Walk:
    """How far one group agrees with a prompt.

    Attributes:
        path: nodes of the agreeing blocks in order; the last one may agree in its first tokens only.
        agreed: tokens that agree.
        holes: for indices in ``path`` without a block (sliding-window groups only): the sibling that agrees
            longest and has one, and how many of its first tokens agree.
        goes_on: whether cached content goes on after the path's last complete block, agreeing or not.
    """

    block_size: int
    window: int | None
    path: list[Node]
    agreed: int
    holes: dict[int, tuple[Node | None, int]]
    goes_on: bool

    def first_needed(self, length: int) -> int:
        """Index of the first block that a token at position ``length`` still sees."""
        return first_visible(length, self.window) // self.block_size

    def longest(self, limit: int) -> int:
        """The longest prefix of at most ``limit`` tokens for which every needed block is there."""
        length = min(limit, self.agreed)
        for hole in reversed(self.holes):
            if hole < self.first_needed(length):
                break
            length = min(length, hole * self.block_size + self.holes[hole][1])
        return length

    def blocks(self, length: int) -> list[Block]:
        """The blocks needed for a prefix of ``length`` tokens, which ``longest`` has found possible."""
        blocks = []
        for index in range(self.first_needed(length), -(-length // self.block_size)):
            node = self.holes[index][0] if index in self.holes else self.path[index]
            assert node is not None
            assert node.block is not None
            blocks.append(node.block)
        return blocks


def first_visible(position: int, window: int | None) -> int:
    """The first position that a token at ``position`` attends to."""
    return 0 if window is None else max(0, position - window + 1)


def common_tokens(left: Tokens, right: Tokens) -> int:
    """Number of leading tokens that are equal."""
    size = min(len(left), len(right))
    difference = int.from_bytes(left[:size], "little") ^ int.from_bytes(right[:size], "little")
    if difference == 0:
        return size // TOKEN_BYTES
    return ((difference & -difference).bit_length() - 1) // (8 * TOKEN_BYTES)


class PrefixIndex:
    """Names of one group's blocks.

    Attributes:
        version: changes whenever the answer of ``walk`` may have changed.
        num_collisions: contents that could not be named because another has their name.
    """

    def __init__(self, block_size: int, window: int | None, remembered: int) -> None:
        self.block_size = block_size
        self.window = window
        self.version = 0
        self.num_collisions = 0
        self._roots: dict[str, Root] = {}
        self._nodes: dict[bytes, Node] = {}
        self._evicted: OrderedDict[bytes, None] = (
            OrderedDict()
        )  # names of the last evicted, to explain misses
        self._remembered = remembered
        self._first_blocks: dict[Tokens, int] = {}  # how many salts know these tokens as their first block

    def walk(self, salt: str, chain: NameChain, tokens: "array[int]") -> Walk:
        """Follow ``tokens`` from the salt's root as far as they agree; changes nothing."""
        path: list[Node] = []
        holes: dict[int, tuple[Node | None, int]] = {}
        node: Node | None = self._roots.get(salt)
        if node is None:
            return Walk(self.block_size, self.window, path, 0, holes, False)
        size = self.block_size
        nodes = self._nodes
        stop = size
        while stop <= len(tokens):
            child = nodes.get(chain.name(tokens, stop))
            if (
                child is None
                or child.parent is not node
                or child.tokens != tokens[stop - size : stop].tobytes()
            ):
                break
            if child.block is None:
                if self.window is None:
                    break  # without this block, nothing after it is of use
                holes[len(path)] = self._nearest_child(node, child.tokens)
            path.append(child)
            node = child
            stop += size
        agreed = stop - size
        nearest, num_common = self._nearest_child(node, tokens[agreed:stop].tobytes())
        if nearest is not None:
            path.append(nearest)
        return Walk(size, self.window, path, agreed + num_common, holes, bool(node.children))

    def root(self, salt: str, name: bytes) -> Root:
        """The root of ``salt``, created if need be."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Root(name, salt)
        return root

    def publish(self, parent: Node, name: bytes, tokens: Tokens, block: Block) -> Node | None:
        """Name ``block``, or find the node that has this content already; the caller's tip moves there.

        Returns:
            The content's node; its block is another one if that was first. None if the name collides: the
            caller, which cannot name what comes after either, then stands nowhere.
        """
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = Node(name, parent, tokens)
            if parent.children:
                insort(parent.children, node, key=_tokens_of)
            else:
                parent.children.append(node)
            if parent.parent is None:
                self._first_blocks[tokens] = self._first_blocks.get(tokens, 0) + 1
        elif node.parent is not parent or node.tokens != tokens:
            self.num_collisions += 1
            self.move_tip(parent, None)
            return None
        if node.block is None:
            node.block = block
            block.node = node
            self.version += 1
        node.num_tips += 1
        parent.num_tips -= 1
        return node

    def forget(self, block: Block, *, evicted: bool = False) -> None:
        """Take the name from ``block``."""
        node = block.node
        if node is None:
            raise ValueError(f"{block!r} has no name to forget")
        block.node = node.block = None
        self.version += 1
        if evicted:
            self._evicted[node.name] = None
            if len(self._evicted) > self._remembered:
                self._evicted.popitem(last=False)
        self._prune(node)

    def move_tip(self, old: Node | None, new: Node | None) -> None:
        """A live sequence stands on ``new`` now, no longer on ``old``."""
        if new is not None:
            new.num_tips += 1
        if old is not None:
            old.num_tips -= 1
            self._prune(old)

    def was_evicted(self, name: bytes) -> bool:
        """Whether a block of this name was evicted not long ago."""
        return name in self._evicted

    def nodes(self) -> list[Node]:
        """All nodes and roots."""
        return [*self._roots.values(), *self._nodes.values()]

    def known_to_other_salt(self, salt: str, first_tokens: Tokens) -> bool:
        """Whether another salt has these tokens as its first block."""
        root = self._roots.get(salt)
        children = root.children if root is not None else []
        place = bisect_left(children, first_tokens, key=_tokens_of)
        own = place < len(children) and children[place].tokens == first_tokens
        return self._first_blocks.get(first_tokens, 0) > own

    def _nearest_child(self, node: Node, tokens: Tokens) -> tuple[Node | None, int]:
        """The child with a block that shares the longest run with ``tokens``, and that run's length."""
        children = node.children
        if not children or not tokens:
            return None, 0
        place = bisect_left(children, tokens, key=_tokens_of)
        best, best_common = None, 0
        for side in (range(place - 1, -1, -1), range(place, len(children))):
            for index in side[:MAX_SIBLINGS]:
                child = children[index]
                if child.block is not None:
                    num_common = common_tokens(child.tokens, tokens)
                    if num_common > best_common:
                        best, best_common = child, num_common
                    break  # further away, fewer tokens agree
        return best, best_common

    def _prune(self, node: Node) -> None:
        """Remove ``node`` and its ancestors as far as nothing needs them."""
        while node.block is None and not node.children and node.num_tips == 0:
            parent = node.parent
            if parent is None:
                assert isinstance(node, Root)
                del self._roots[node.salt]
                return
            self.version += 1
            del self._nodes[node.name]
            del parent.children[bisect_left(parent.children, node.tokens, key=_tokens_of)]
            if parent.parent is None:
                self._first_blocks[node.tokens] -= 1
                if not self._first_blocks[node.tokens]:
                    del self._first_blocks[node.tokens]
            node = parent


def _tokens_of(node: Node) -> Tokens:
    return node.tokens
