"""A report on a terminal."""

from rich.console import Console

from octavo.bench.report.parts import Document
from octavo.bench.tables import print_table, terminal_width, wrapped
from octavo.core.display import printable

_INDENT = 12  # of texts beside their names


def print_document(document: Document) -> None:
    """Headline, facts, warnings, tables, how and when it was measured."""
    width = terminal_width()
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(wrapped("", printable(document.headline), width), style="bold")
    for name, text in document.facts:
        console.print(wrapped(f"  {name:<9} ", printable(text), width, _INDENT))
    # In one piece, whatever the width: it is there to be copied.
    console.print(f"  {'Command':<9} {printable(document.command)}")
    for warning in document.warnings:
        console.print(wrapped("  ! ", printable(warning), width), style="yellow")
    console.print()
    labels = max((len(tile.label) for tile in document.tiles), default=0)
    values = max((len(tile.value) for tile in document.tiles), default=0)
    for tile in document.tiles:
        first = f"  {tile.label:<{labels}}  {tile.value:>{values}}  "
        console.print(wrapped(first, printable(tile.note), width))
    console.print()
    for sheet in document.sheets:
        print_table(sheet.title, sheet.columns, sheet.rows, printable(sheet.note))
    if document.footer:
        console.print(wrapped("", printable(document.footer), width), style="dim")
