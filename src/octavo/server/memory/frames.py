"""Frames of the memory feed: all blocks, or those that changed, as JSON with arrays in base64."""

import base64
import json
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo.server.memory.blocks import BlockRows, Ids


class FrameHead(NamedTuple):
    """What a frame says besides blocks.

    Attributes:
        t: Unix seconds.
        total: usable blocks.
        fields: requests, num_requests, stats, steps and cost, ready for JSON.
    """

    t: float
    total: int
    fields: dict[str, Any]


def full_frame(head: FrameHead, rows: BlockRows, ages_s: npt.NDArray[Any]) -> str:
    """All blocks.

    Args:
        rows, ages_s: one entry per block id, the null block included.
    """
    return _encode(
        head,
        {
            "full": True,
            **_columns(rows.take(slice(1, None))),
            "ages": _base64(ages_s[1:].astype("<f4")),
        },
    )


def change_frame(head: FrameHead, ids: Ids, rows: BlockRows) -> str:
    """Some blocks; their state has changed just now.

    Args:
        rows: one entry for each of ``ids``.
    """
    return _encode(head, {"full": False, "ids": _base64(ids.astype("<i4")), **_columns(rows)})


def heartbeat(frame: str, t: float) -> str:
    """A frame with what another said, but of now: nothing has changed since."""
    fields = json.loads(frame)
    head = FrameHead(t, fields.pop("total"), {**_rest(fields), "steps": []})
    return change_frame(head, np.empty(0, np.int32), BlockRows.empty(0))


def as_full(frame: str, rows: BlockRows, ages_s: npt.NDArray[Any]) -> str:
    """What a frame of changes said, with all blocks."""
    fields = json.loads(frame)
    return full_frame(FrameHead(fields.pop("t"), fields.pop("total"), _rest(fields)), rows, ages_s)


_BLOCK_FIELDS = frozenset({"t", "total", "full", "ids", "states", "owners", "refs", "ages"})


def _rest(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _BLOCK_FIELDS}


def _columns(rows: BlockRows) -> dict[str, str]:
    return {
        "states": _base64(rows.states),
        "owners": _base64(rows.owners.astype("<i4")),
        "refs": _base64(rows.refs.astype("<u2")),
    }


def _base64(values: npt.NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


def _encode(head: FrameHead, blocks: dict[str, Any]) -> str:
    frame = {"t": round(head.t, 4), "total": head.total, **blocks, **head.fields}
    return json.dumps(frame, separators=(",", ":"))
