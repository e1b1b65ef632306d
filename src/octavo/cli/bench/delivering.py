"""Where reports go: a terminal, JSON, a page, pictures."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.options import AsJson
from octavo.core.errors import OctavoError

if TYPE_CHECKING:
    from octavo.bench.report.parts import Document

Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the JSON object to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with plots to this file.")]
Png = Annotated[Path | None, typer.Option("--png", help="Write the plots as PNG files into this directory.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Where a report was asked for: a group for ``grouped``.

    Checked before anything is measured: hours of work should not end in a directory that is not there.

    Raises:
        OctavoError: a file's directory is missing, or there is nothing to draw with.
    """

    as_json: AsJson = False
    output: Output = None
    html: Html = None
    png: Png = None

    def __post_init__(self) -> None:
        for file in (self.output, self.html):
            if file is not None:
                check_directory(file)
        if self.png is not None:
            from octavo.bench.report.drawing import HOW_TO_GET, can_draw

            if not can_draw():
                raise OctavoError(HOW_TO_GET)

    def give(self, report: Mapping[str, Any], document: "Callable[[Mapping[str, Any]], Document]") -> None:
        """Write and print it."""
        printed = deliver(report, self.as_json, self.output)
        if printed and not (self.html or self.png):
            return
        made = document(report)
        if self.html is not None:
            from octavo.bench.report.page import as_html

            self.html.write_text(as_html(made), encoding="utf-8")
        if self.png is not None:
            from octavo.bench.report.drawing import write_png

            for chart in (*made.charts, *made.more_charts):
                write_png(chart, self.png)
        if not printed:
            from octavo.bench.report.terminal import print_document

            print_document(made)


def check_directory(file: Path) -> None:
    """That a file could be written.

    Raises:
        OctavoError: its directory is missing.
    """
    if not file.absolute().parent.is_dir():
        raise OctavoError(f"cannot write {file}: there is no directory {file.absolute().parent}")


def deliver(report: Mapping[str, Any], as_json: bool, output: Path | None) -> bool:
    """Write and print the report as JSON where that was asked for; whether it was printed."""
    if output is not None:
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(report))
    return as_json
