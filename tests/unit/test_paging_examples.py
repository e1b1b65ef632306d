"""The example and the benchmark run, and print what they are there to show."""

import json
import runpy
from pathlib import Path

from octavo.bench.parts import paging

ROOT = Path(__file__).parents[2]


def test_the_memory_only_example_shows_sharing_copying_and_eviction(capsys):
    runpy.run_path(str(ROOT / "examples" / "memory_only.py"), run_name="__main__")
    text = capsys.readouterr().out
    assert "second: blocks [1, 2, 3]; 10 of 12 tokens cached: " in text
    assert "first differs at token 10" in text
    assert "copy block 3 to block 5 before sequence 2 writes" in text
    assert "6 blocks hold 11 table entries" in text
    assert "61 tokens: out of KV blocks: 16 needed, 11 free, 4 evictable" in text
    assert "60 tokens: 4 cached blocks evicted, 0 left" in text


def test_the_benchmark_reports_the_step_and_every_operation():
    report = json.loads(json.dumps(paging.run(quick=True)))
    assert report["step_us_64"] == report["steps"][0]["median_us"] > 0
    assert report["steps"][0]["sequences"] == 64
    assert [row["live"] for row in report["operations"]] == [1, 64, 1024]
    assert all(
        row[name] > 0 for row in report["operations"] for name in ("match", "create", "append", "release")
    )
    text = paging.render(report)
    assert len(text.splitlines()) == 2 + len(report["steps"]) + 3 + 3
