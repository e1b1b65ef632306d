"""Imports point down: each room uses only those below it. Read from the source, so nothing is missed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import octavo

ROOT = Path(octavo.__file__).parent

# What each room may import from. `_native` is the compiled kernels.
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    "paging": {"core"},
    "scheduling": {"core", "paging"},
    "storage": {"core"},
    "attention": {"core", "storage"},
    "weights": {"core"},
    "backends": {"core", "storage", "attention", "weights", "_native"},
    "models": {"core", "storage", "attention", "weights", "backends"},
    "text": {"core", "weights"},
    "engine": {
        "core",
        "paging",
        "scheduling",
        "storage",
        "attention",
        "weights",
        "backends",
        "models",
        "text",
    },
}
EVERYTHING_BELOW = {*ALLOWED, "_native", ""}
ALLOWED |= {
    "bench": EVERYTHING_BELOW,
    "server": EVERYTHING_BELOW,
    "cli": EVERYTHING_BELOW | {"bench", "server"},
    "__main__": {"cli"},
    "": {"core", "engine"},  # octavo/__init__.py
}
# The rooms and files of `bench`, from the ground up: each uses only those before it.
BENCH = (
    *("conditions", "interrupts", "journal", "machine", "scenes", "separate", "tables"),
    *("ceilings", "workloads", "load", "metrics", "experiment", "offline"),
    *("sweep", "tuning", "report", "compare"),
)
# What `bench.parts` uses of the rest of `bench`, which in turn uses nothing of it.
UNDER_PARTS = {"ceilings", "scenes", "tables"}
# Rooms that plain Python must be enough for, so that a simulator can run policy alone.
WITHOUT_NUMPY = ("core", "paging", "scheduling")


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def room_named(module: str) -> str:
    name = module.split(".")[1] if "." in module else ""
    return name if name in ALLOWED or name == "_native" else ""


def test_every_room_imports_only_from_below():
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 50
    assert {room_of(f) for f in files} <= set(ALLOWED), "a new room needs its place in ALLOWED"
    wrong = []
    for file in files:
        room = room_of(file)
        for module in imported_modules(file):
            if module.split(".")[0] == "octavo":
                target = room_named(module)
                if target not in (room, *ALLOWED[room]):
                    wrong.append(f"{file.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_the_check_sees_imports_inside_functions(tmp_path):
    file = tmp_path / "x.py"
    file.write_text(
        "def f():\n    from octavo.engine import llm\n    import octavo.cli\n    from octavo import LLM\n"
    )
    assert list(imported_modules(file)) == ["octavo.engine.llm", "octavo.cli", "octavo.LLM"]


def test_every_room_of_bench_imports_only_from_below():
    allowed = {name: {name, *BENCH[:i]} for i, name in enumerate(BENCH)}
    allowed |= {"parts": {"parts", *UNDER_PARTS}, "__init__": set()}
    wrong = []
    for file in sorted((ROOT / "bench").rglob("*.py")):
        room = file.relative_to(ROOT / "bench").with_suffix("").parts[0]
        for module in imported_modules(file):
            if module.startswith("octavo.bench.") and module.split(".")[2] not in allowed[room]:
                wrong.append(f"{file.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_policy_needs_no_arrays():
    for file in (f for room in WITHOUT_NUMPY for f in (ROOT / room).rglob("*.py")):
        outside = {m.split(".")[0] for m in imported_modules(file)} - {"octavo"}
        assert outside <= sys.stdlib_module_names, f"{file.relative_to(ROOT)} imports {outside}"


def test_memory_part_alone_loads_no_heavy_library():
    code = "import octavo.paging.manager, octavo.scheduling.scheduler, sys; print('numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
