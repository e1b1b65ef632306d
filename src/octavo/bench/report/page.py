"""A report as one HTML file that needs nothing else."""

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from octavo.bench.report.drawing import HOW_TO_GET, as_svg, can_draw
from octavo.bench.report.parts import Chart, Document, Sheet, Tile


def as_html(document: Document) -> str:
    """The page. Its first screen says how fast, what, on what machine, with which command."""
    css = (files("octavo.bench.report") / "page.css").read_text(encoding="utf-8")
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in document.facts)
    parts = [
        f"<h1>{escape(document.title)}</h1>",
        f'<p class="headline">{_unbroken(document.headline)}</p>',
        f'<dl class="tiles">{"".join(map(_tile, document.tiles))}</dl>',
        f'<dl class="facts">{facts}<dt>Command</dt><dd><code>{escape(document.command)}</code></dd></dl>',
        _warnings(document),
        _charts("Plots", document.charts, 0),
        *map(_sheet, document.sheets),
        _charts("More plots" if document.charts else "Plots", document.more_charts, len(document.charts)),
    ]
    text = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{css}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + f"\n</main>\n<footer>{escape(document.footer)}</footer>\n</body>\n</html>\n"
    )
    # What a server says may hold halves of characters, which no file can.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _unbroken(text: str) -> str:
    """Numbers and their units stay on one line."""
    return re.sub(r"(\d) (?=ms\b|s\b|µs\b|x\b|%|tokens/s)", "\\1&nbsp;", escape(text))


def _tile(tile: Tile) -> str:
    note = f"<small>{escape(tile.note)}</small>" if tile.note else ""
    return f'<div class="tile"><dt>{escape(tile.label)}</dt><dd>{escape(tile.value)}{note}</dd></div>'


def _warnings(document: Document) -> str:
    if not document.warnings:
        return ""
    return f'<ul class="warnings">{"".join(f"<li>{escape(w)}</li>" for w in document.warnings)}</ul>'


def _charts(title: str, charts: Sequence[Chart], first: int) -> str:
    """Plots; the first has this number on the page."""
    if not charts:
        return ""
    if not can_draw():
        return f'<p class="note">No plots here: {escape(HOW_TO_GET)}.</p>'
    figures = [
        f"<figure><h3>{escape(chart.title)}</h3>{as_svg(chart, number)}"
        f"<figcaption>{escape(chart.caption)}</figcaption></figure>"
        for number, chart in enumerate(charts, first)
    ]
    return f'<h2>{title}</h2>\n<div class="charts">{"".join(figures)}</div>'


def _sheet(sheet: Sheet) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in sheet.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(c)}</td>" for c in row[1:])
        + "</tr>"
        for row in sheet.rows
    )
    note = f'<p class="note">{escape(sheet.note)}</p>' if sheet.note else ""
    return (
        f'<h2>{escape(sheet.title)}</h2>\n<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{note}"
    )
