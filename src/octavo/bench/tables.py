"""Reports as tables for a terminal."""

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from octavo.core.units import format_bytes

_PLAIN_WIDTH = 140  # where there is no terminal to ask
_LEAST_WIDTH = 20  # of text beside the beginning of its line
_GAP = 2  # between columns


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = "") -> None:
    """Print rows of text, and a note below; every column but the first is aligned to the right.

    What is too wide becomes several tables below each other, each with the first column.
    """
    width = terminal_width()
    console = Console(highlight=False, markup=False, width=width)  # a "[" is one
    console.print(wrapped("", title, width), style="bold", soft_wrap=True)
    for number, chosen in enumerate(_fitting(columns, rows, width)):
        if number:
            console.print()
        table = Table(box=None, pad_edge=False)
        for i in chosen:
            table.add_column(columns[i], justify="left" if i == 0 else "right")
        for row in rows:
            table.add_row(*(row[i] for i in chosen))
        console.print(table)
    if note:
        console.print(wrapped("", note, width), style="dim", soft_wrap=True)
    console.print()


def terminal_width() -> int:
    """In characters; 140 where there is no terminal to ask."""
    return shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns


def wrapped(first: str, text: str, width: int, indent: int | None = None) -> str:
    """Text after the beginning of a line, in lines of a width.

    Lines after the first have this indent; None is that of the text.
    """
    indent = len(first) if indent is None else indent
    return (
        textwrap.fill(
            text,
            max(width, indent + _LEAST_WIDTH),
            initial_indent=first,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        or first.rstrip()
    )


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Columns of each table: the first, and as many others as fit beside it."""
    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    tables, used = [[0]], widths[0]
    for i in range(1, len(columns)):
        needed = _GAP + widths[i]
        if used + needed > width and len(tables[-1]) > 1:
            tables.append([0])
            used = widths[0]
        tables[-1].append(i)
        used += needed
    return tables


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
