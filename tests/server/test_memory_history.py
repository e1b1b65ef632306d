"""The past that the memory feed keeps: bounded, and whole from any key frame on."""

import json

import numpy as np
import pytest
from feed_case import FeedReader

from octavo.server.memory.blocks import BlockRows
from octavo.server.memory.history import Change, History


def rows_of(*states: int) -> BlockRows:
    rows = BlockRows.empty(len(states))
    rows.states[:] = states
    return rows


def new_history(**options) -> History:
    frame = json.dumps({"t": 0.0, "total": 3, "full": True, "cost": 0, "requests": ["first"]})
    return History(rows_of(0, 0, 1, 2), 0.0, frame, **options)


def add(history: History, t: float, block_id: int, state: int) -> None:
    ids = np.array([block_id], np.int32)
    frame = {"t": t, "total": 3, "full": False, "ids": "", "cost": t, "requests": [str(t)]}
    frame |= dict.fromkeys(("states", "owners", "refs"), "")
    history.add(Change(t, ids, rows_of(state)), json.dumps(frame))


def test_the_key_frame_moves_along():
    history = new_history(past_s=10.0)
    for t in range(1, 31):
        add(history, float(t), 1 + t % 3, t % 4)
    frames = list(history.frames())
    assert len(frames) == len(history) == 12
    reader = FeedReader()
    key = reader.apply(frames[0])
    assert key["full"]
    assert key["t"] == 19.0
    assert key["requests"] == ["19.0"]
    assert reader.rows.states[1:].tolist() == [18 % 4, 19 % 4, 17 % 4]
    assert reader.ages.tolist() == [1.0, 0.0, 2.0]
    assert [json.loads(f)["t"] for f in frames[1:]] == [float(t) for t in range(20, 31)]


@pytest.mark.parametrize("after", [0.0, 4.0, 9.5, 20.0, 99.0])
def test_less_of_the_past_is_the_end_of_it(after):
    history = new_history()
    whole, part = FeedReader(), FeedReader()
    for t in range(1, 31):
        add(history, float(t), 1 + t % 3, t % 4)
    for reader, frames in ((whole, history.frames()), (part, history.frames(after))):
        states = {}
        for text in frames:
            frame = json.loads(text)
            if not frame["full"]:  # the frames of this test say nothing of blocks
                block_id, state = 1 + int(frame["t"]) % 3, int(frame["t"]) % 4
                reader.rows.put(np.array([block_id]), rows_of(state))
            else:
                reader.apply(text)
            states[frame["t"]] = reader.rows.states.tolist()
        reader.seen = states
    assert part.seen == {t: s for t, s in whole.seen.items() if t in part.seen}
    assert len(part.seen) == 1 + sum(t >= after for t in range(1, 31))


def test_bytes_are_bounded():
    history = new_history(max_bytes=5000)
    for t in range(1, 200):
        add(history, 0.001 * t, 1, t % 4)
        assert history.num_bytes <= 5000
    assert 1 < len(history) < 20


def test_whoever_reads_it_is_not_disturbed():
    history = new_history(past_s=5.0)
    for t in range(1, 4):
        add(history, float(t), 1, 3)
    frames = history.frames()
    for t in range(4, 100):
        add(history, float(t), 2, 3)
    assert [json.loads(f)["t"] for f in frames] == [0.0, 1.0, 2.0, 3.0]
