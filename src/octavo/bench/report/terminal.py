"""A report on a terminal."""

from rich.console import Console

from octavo.bench.report.parts import Document
from octavo.bench.tables import print_table
from octavo.core.display import printable


def print_document(document: Document) -> None:
    """Headline, facts, warnings, tables."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(printable(document.headline), style="bold")
    for name, text in document.facts:
        console.print(f"  {name:<9} {printable(text)}")
    for warning in document.warnings:
        console.print(f"  ! {printable(warning)}", style="yellow")
    console.print()
    for tile in document.tiles:
        console.print(f"  {tile.label:<28} {tile.value:>10}  {tile.note}")
    console.print()
    for sheet in document.sheets:
        print_table(sheet.title, sheet.columns, sheet.rows, printable(sheet.note))
