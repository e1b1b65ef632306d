"""A toy engine in place of an ``LLM``, a reader of the memory feed, and the census to compare it with."""

import base64
import json
from typing import Any

import numpy as np
from toy import ToyEngine, toy_text

from octavo.engine.generation import Generation
from octavo.paging.groups import GroupSpec
from octavo.server.memory.blocks import BlockResolver, BlockRows
from octavo.server.memory.report import PoolFacts

GROUPS = {
    "one group": [GroupSpec(8)],
    "several tables": [GroupSpec(16, None, 2), GroupSpec(8)],
    "a window": [GroupSpec(8, 20), GroupSpec(8, None, 3)],
}


class ToyText:
    def decode(self, ids, *, skip_special=True, continuation=False) -> str:
        return toy_text(list(ids))


class ToyLLM:
    """What AsyncEngine and the memory view need of an LLM."""

    def __init__(self, toy: ToyEngine) -> None:
        self.toy = toy
        self.engine = toy.engine
        self.tokenizer = ToyText()

    def prepare(self, prompt, params, *, cache_salt="", priority=0) -> Generation:
        return self.engine.prepare(prompt, params, salt=cache_salt, priority=priority)


def facts_of(toy: ToyEngine) -> PoolFacts:
    groups = toy.kv.groups
    return PoolFacts(groups, tuple((i,) for i in range(len(groups))), 64, 1000, 64_000)


class FeedReader:
    """Applies frames as a page does."""

    def __init__(self) -> None:
        self.rows: BlockRows | None = None
        self.ages: np.ndarray | None = None
        self.frames: list[dict[str, Any]] = []

    def apply(self, text: str) -> dict[str, Any]:
        frame = json.loads(text)
        total = frame["total"]
        rows = BlockRows(
            np.frombuffer(base64.b64decode(frame["states"]), "u1"),
            np.frombuffer(base64.b64decode(frame["owners"]), "<i4"),
            np.frombuffer(base64.b64decode(frame["refs"]), "<u2"),
        )
        if frame["full"]:
            assert "ids" not in frame
            self.rows = BlockRows.empty(total + 1)
            self.rows.put(np.arange(1, total + 1), rows)
            self.ages = np.frombuffer(base64.b64decode(frame["ages"]), "<f4")
            assert len(self.ages) == len(rows.refs) == total
        else:
            assert self.rows is not None, "a difference before any key frame"
            assert "ages" not in frame
            self.rows.put(np.frombuffer(base64.b64decode(frame["ids"]), "<i4"), rows)
        self.frames.append(frame)
        return frame


def census_rows(toy: ToyEngine) -> BlockRows:
    """What the manager's own, slow census says of each block."""
    census = toy.kv.census()
    rows = BlockRows.empty(toy.kv.pool.num_blocks)
    rows.states[census.cached] = 3
    assert {i for i in range(1, toy.kv.pool.num_blocks) if rows.states[i] == 0} >= set(census.free)
    for running in toy.scheduler.running:
        for block_id in census.owners[running.seq_id]:
            rows.refs[block_id] += 1
            rows.states[block_id] = 1 if rows.refs[block_id] == 1 else 2
            if rows.owners[block_id] < 0:
                rows.owners[block_id] = running.request.request_id
    rows.states[census.in_flight] = 4
    assert not rows.states[census.free].any()
    return rows


def assert_same(left: BlockRows, right: BlockRows) -> None:
    for name in ("states", "owners", "refs"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name), err_msg=name)


def arranged(toy: ToyEngine, blocks) -> BlockRows:
    return BlockResolver(toy.kv.pool.num_blocks).arrange(blocks).rows
