"""The pool: which frames of KV memory are held, cached or free. Every operation is O(1) amortized.

A block (see ``block``) is

- *held* while it has owners (tables that point at it) or pins (copies in flight),
- *cached* when nobody holds it but it has a name under which the prefix index finds it,
- gone otherwise: its frames are free.

Frames are reused in this order: free ones first, last freed first; then those of cached blocks, least
recently used first. Sequences let go of their tail before their head, so an old prefix loses its tail first.
"""

from collections.abc import Callable

from octavo.core.errors import OutOfBlocks
from octavo.paging.block import Block


class BlockPool:
    """Frames 1 .. num_blocks - 1, handed out as blocks.

    Attributes (all counted in frames, kept up to date by every operation):
        num_cached: of cached blocks, which can be evicted at any time.
        num_owned: of blocks with at least one owner.
        num_shared: of blocks with at least two owners.
        num_pinned: of blocks with pins; num_in_flight: of blocks with pins and no owner.
        num_evictions: evicted so far.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[Block], None] = lambda block: None) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks={num_blocks}: a pool needs the null block and at least one more")
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._free = list(range(num_blocks - 1, 0, -1))
        self._queue = Block(-1, ())  # the ring's head: .newer is the least recently used, .older the most
        self.num_cached = 0
        self.num_owned = 0
        self.num_shared = 0
        self.num_pinned = 0
        self.num_in_flight = 0
        self.num_evictions = 0

    @property
    def num_free(self) -> int:
        """Frames that hold nothing."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Frames that can be had at once: free ones and those of cached blocks."""
        return len(self._free) + self.num_cached

    def allocate(self, group: int, num_frames: int) -> Block:
        """A new unnamed block with one owner, evicting cached blocks where free frames do not suffice.

        Raises:
            OutOfBlocks: not enough frames are free or cached; nothing is changed.
        """
        free = self._free
        if len(free) < num_frames:
            self.check_available(num_frames)
            while len(free) < num_frames:
                self._evict(self._queue.newer)
        frames = (free.pop(),) if num_frames == 1 else tuple([free.pop() for _ in range(num_frames)])
        block = Block(group, frames)
        block.owners = 1
        self.num_owned += num_frames
        return block

    def check_available(self, num_frames: int, also: int = 0) -> None:
        """Raise OutOfBlocks unless ``num_frames`` can be had; ``also`` more are about to come free."""
        if num_frames > self.num_available + also:
            raise OutOfBlocks(needed=num_frames, free=self.num_free + also, evictable=self.num_cached)

    def retain(self, block: Block) -> None:
        """One more owner."""
        size = len(block.frames)
        if block.owners == 0:
            self.num_owned += size
            if block.pins:
                self.num_in_flight -= size
            else:
                self._leave_queue(block)
        elif block.owners == 1:
            self.num_shared += size
        block.owners += 1

    def release(self, block: Block) -> None:
        """One owner less; the last one makes the block cached, if it has a name, or frees its frames.

        Raises:
            ValueError: the block has no owner (a double release).
        """
        if block.owners < 1:
            raise ValueError(f"{block!r} released, but nobody holds it")
        size = len(block.frames)
        block.owners -= 1
        if block.owners == 1:
            self.num_shared -= size
        elif block.owners == 0:
            self.num_owned -= size
            if block.pins:
                self.num_in_flight += size
            else:
                self._let_go(block)

    def pin(self, block: Block) -> None:
        """Keep a held block's frames from reuse until ``unpin``, whoever lets go of it."""
        if block.owners < 1:
            raise ValueError(f"{block!r} pinned, but nobody holds it")
        if block.pins == 0:
            self.num_pinned += len(block.frames)
        block.pins += 1

    def unpin(self, block: Block) -> None:
        """Undo one ``pin``."""
        if block.pins < 1:
            raise ValueError(f"{block!r} unpinned, but it has no pin")
        block.pins -= 1
        if block.pins == 0:
            self.num_pinned -= len(block.frames)
            if block.owners == 0:
                self.num_in_flight -= len(block.frames)
                self._let_go(block)

    def cached_blocks(self) -> list[Block]:
        """Blocks that nobody holds, next to be evicted first."""
        blocks = []
        block = self._queue.newer
        while block is not self._queue:
            blocks.append(block)
            block = block.newer
        return blocks

    def free_frames(self) -> list[int]:
        """Frames that hold nothing, next to be used first."""
        return self._free[::-1]

    def _evict(self, block: Block) -> None:
        self._leave_queue(block)
        self._on_evict(block)
        self.num_evictions += len(block.frames)
        self._free.extend(reversed(block.frames))

    def _let_go(self, block: Block) -> None:
        if block.node is None:
            self._free.extend(reversed(block.frames))
            return
        queue = self._queue
        block.older, block.newer = queue.older, queue
        queue.older.newer = block
        queue.older = block
        self.num_cached += len(block.frames)

    def _leave_queue(self, block: Block) -> None:
        if block.newer is block:
            raise ValueError(f"{block!r} is neither held nor cached")
        block.older.newer, block.newer.older = block.newer, block.older
        block.older = block.newer = block
        self.num_cached -= len(block.frames)
