"""Where reports go: a terminal, JSON, a page, pictures, tables."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from octavo.cli.bench.writing import check_distinct, check_file, check_folder, keep, write_text
from octavo.cli.options import AsJson
from octavo.core.errors import OctavoError

if TYPE_CHECKING:
    from octavo.bench.report.parts import Document


def tried_file(context: typer.Context, file: Path | None) -> Path | None:
    """The callback of an option that names a file to write: hours of work should not end in a full disk.

    Raises:
        OctavoError: it cannot be written.
    """
    if file is not None and not context.resilient_parsing:
        check_file(file)
    return file


def tried_folder(context: typer.Context, folder: Path | None) -> Path | None:
    """The same of a directory that files are written into.

    Raises:
        OctavoError: they cannot be written.
    """
    if folder is not None and not context.resilient_parsing:
        check_folder(folder)
    return folder


Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write the JSON object to this file.", callback=tried_file),
]
Html = Annotated[
    Path | None, typer.Option("--html", help="Write a page with plots to this file.", callback=tried_file)
]
Png = Annotated[
    Path | None,
    typer.Option("--png", help="Write the plots as PNG files into this directory.", callback=tried_folder),
]
Csv = Annotated[
    Path | None,
    typer.Option("--csv", help="Write the tables as CSV files into this directory.", callback=tried_folder),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Where a report was asked for: a group for ``grouped``.

    Attributes:
        csv: no option here, but of ``DeliveryWithTables``.
        besides: what else the command writes, by option.

    Raises:
        OctavoError: two options name the same file, or there is nothing to draw with.
    """

    as_json: AsJson = False
    output: Output = None
    html: Html = None
    png: Png = None
    csv: Path | None = None
    besides: Mapping[str, Path | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        files = {"--output": self.output, "--html": self.html, **self.besides}
        for option, folder in (("--png", self.png), ("--csv", self.csv)):
            check_distinct({**files, option: folder})  # the two folders may be one
        if self.png is not None:
            from octavo.bench.report.drawing import HOW_TO_GET, can_draw

            if not can_draw():
                raise OctavoError(HOW_TO_GET)

    def give(self, report: Mapping[str, Any], document: "Callable[[Mapping[str, Any]], Document]") -> None:
        """Write and print it, as far as that is possible.

        Raises:
            OctavoError: something could not be written; the report is kept, and standard error says where.
        """
        with _Delivering(report) as now:
            now.as_json(self.output, is_printed=self.as_json)
            if self.as_json and not (self.html or self.png or self.csv):
                return
            made = document(report)
            if self.html is not None:
                with now.writing(self.html):
                    from octavo.bench.report.page import as_html

                    write_text(self.html, as_html(made))
            if self.png is not None:
                with now.writing(self.png):
                    from octavo.bench.report.drawing import write_png

                    for chart in (*made.charts, *made.more_charts):
                        write_png(chart, self.png)
            if self.csv is not None:
                with now.writing(self.csv):
                    from octavo.bench.report.sweep import write_csv

                    write_csv(made, self.csv)
            if not self.as_json:
                from octavo.bench.report.terminal import print_document

                with now.writing("standard output"):
                    print_document(made)
                    sys.stdout.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryWithTables(Delivery):
    """The same, of a command whose report has tables."""

    csv: Csv = None


def deliver(report: Mapping[str, Any], as_json: bool, output: Path | None) -> bool:
    """Write and print the report as JSON where that was asked for; whether it was printed.

    Raises:
        OctavoError: it could not be written; the report is kept, and standard error says where.
    """
    with _Delivering(report) as now:
        now.as_json(output, is_printed=as_json)
    return as_json


class _Delivering:
    """One place that cannot be written does not keep a report from the others.

    If something goes wrong, whatever it is, and the report's JSON is nowhere, it is kept in a new file.
    """

    def __init__(self, report: Mapping[str, Any]) -> None:
        self._report = report
        self._failures: list[str] = []
        self._is_kept = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (error or self._failures) and not self._is_kept:
            print(f"octavo: the report is {keep(self._report)}", file=sys.stderr)
        if self._failures and error is None:
            raise OctavoError("; ".join(self._failures))

    def as_json(self, output: Path | None, *, is_printed: bool) -> None:
        """Into a file, and onto standard output."""
        if output is not None:
            with self.writing(output):
                write_text(output, json.dumps(self._report, indent=1) + "\n")
                self._is_kept = True
        if is_printed:
            with self.writing("standard output"):
                print(json.dumps(self._report), flush=True)
                self._is_kept = True

    @contextmanager
    def writing(self, where: Path | str) -> Iterator[None]:
        """For what writes there. If it cannot, that is told in the end."""
        try:
            yield
        except BrokenPipeError:
            raise  # whoever read it has had enough: no failure, but perhaps too early
        except OSError as error:
            self._failures.append(f"cannot write {where}: {error.strerror}")
