"""Reports as tables for a terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from octavo.core.units import format_bytes

_PLAIN_WIDTH = 140  # where there is no terminal to ask


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Print rows of text, and a note below; every column but the first is aligned to the right."""
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)  # a "[" is one
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)
    if note:
        console.print(note, style="dim", soft_wrap=True)
    console.print()


def print_ceilings(report: dict[str, Any]) -> None:
    """Print what a report says of its machine and of the ceilings measured in the same run."""
    machine, ceilings = report["machine"], report["ceilings"]
    print_table(
        f"{machine['cpu']}: {machine['threads']} of {machine['cores']} cores, {machine['isa']}",
        ["at most", "", ""],
        [
            [f"read from {r['level']}", f"{r['gb_s']:.1f} GB/s", f"of {format_bytes(r['working_set_bytes'])}"]
            for r in ceilings["read"]
        ]
        + [
            ["int8 dot products", f"{ceilings['int8_gop_s']:.0f} GOP/s", ""],
            ["bfloat16 dot products", f"{ceilings['bfloat16_gflop_s']:.0f} GFLOP/s", ""],
            ["float32 FMA", f"{ceilings['float32_gflop_s']:.0f} GFLOP/s", ""],
            ["loop without work", f"{ceilings['loop_us']:.2f} us", ""],
        ],
    )
