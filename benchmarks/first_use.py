"""How long a first-time user waits: clone to first streamed token, and each time the server starts.

    python benchmarks/first_use.py --json --output benchmarks/reports/first_use.json

Clones this repository, makes a virtual environment, installs with pip, starts the server with the default
model and streams an answer, all in a temporary folder. The model is in the user's cache, or is fetched: the
report says which.
"""

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from octavo.bench.machine import describe
from octavo.cli.native import native_isa, usable_cores

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path | None = None) -> float:
    """Seconds that a command takes."""
    began_s = time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began_s


@contextmanager
def serving(python: Path) -> Iterator[tuple[str, float]]:
    """A server; its address, and the seconds from the command to its being ready."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [python, "-m", "octavo", "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        yield url, time.perf_counter() - began_s
    finally:
        process.terminate()
        process.wait()


def first_token_s(url: str) -> float:
    """Seconds from asking to the first piece of an answer."""
    where = urlsplit(url)
    body = {"messages": [{"role": "user", "content": "What is an octavo?"}], "max_tokens": 8, "stream": True}
    began_s = time.perf_counter()
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    for line in response:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            break
    found_s = time.perf_counter() - began_s
    connection.close()
    return found_s


def path(folder: Path) -> dict[str, Any]:
    """Every stage from a clone to the first token."""
    clone, python = folder / "octavo", folder / "venv" / "bin" / "python"
    stages = {"clone": run("git", "clone", "--quiet", ROOT, clone)}
    stages["venv"] = run(sys.executable, "-m", "venv", folder / "venv")
    stages["install"] = run(python, "-m", "pip", "install", "--quiet", ".", cwd=clone)
    with serving(python) as (url, ready_s):
        stages["start"] = ready_s
        stages["first_token"] = first_token_s(url)
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder / "wheel", ".", cwd=clone)
    (wheel,) = (folder / "wheel").glob("octavo-*.whl")
    installed = sum(f.stat().st_size for f in (folder / "venv").rglob("*") if f.is_file())
    return {
        "stages_s": {name: round(seconds, 2) for name, seconds in stages.items()},
        "total_s": round(sum(stages.values()), 1),
        "wheel_bytes": wheel.stat().st_size,
        "venv_bytes": installed,
    }


def imports() -> dict[str, float]:
    """Milliseconds that each package's own modules take to import."""
    code = "import octavo.cli.serve, octavo.server.serving, octavo.engine.llm, gguf, llguidance"
    traced = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    )
    taken: dict[str, float] = {}
    for own_us, name in re.findall(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", traced.stderr):
        package = name.split(".")[0]
        taken[package] = taken.get(package, 0.0) + int(own_us) / 1e3
    largest = sorted(taken.items(), key=lambda item: -item[1])[:12]
    return {name: round(ms, 1) for name, ms in largest}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--starts", type=int, default=10)
    options.add_argument("--json", action="store_true")
    options.add_argument("--output", type=Path)
    given = options.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "octavo" / "models" / "smollm2"
    was_cached = cache.exists()
    starts = []
    for _ in range(given.starts):
        with serving(Path(sys.executable)) as (_, ready_s):
            starts.append(round(ready_s, 3))
    with tempfile.TemporaryDirectory() as folder:
        report = {
            "machine": describe(usable_cores(), native_isa() or "none").as_dict(),
            "starts_s": starts,
            "median_start_s": round(statistics.median(starts), 3),
            "imports_ms": imports(),
            "model_was_cached": was_cached,
            "path": path(Path(folder)),
        }
    text = json.dumps(report, indent=1)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")
    if given.json:
        print(text)
        return
    print(f"command to ready: {report['median_start_s']} s (median of {len(starts)})")
    print(f"clone to first token: {report['path']}")


if __name__ == "__main__":
    main()
