"""Plots, by Matplotlib: as SVG for a page, in its colours, light or dark; and as PNG files."""

import io
import re
from contextlib import AbstractContextManager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from octavo.bench.report.parts import Chart
from octavo.core.errors import OctavoError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOW_TO_GET: Final = "plots need Matplotlib: pip install matplotlib"
# Told apart by brightness too, and legible on white and on black.
_COLOURS: Final = ("#0b7285", "#e8590c", "#7048e8", "#2b8a3e", "#c2255c", "#868e96")
_DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (8, 2)), "-")
_MARKS: Final = ("o", "s", "^", "D", "v", "P")
# Stand for the page's colours of text and of lines, until the page is made.
_INK, _RULE = "#010203", "#040506"
_PRINTED: Final = ("#212529", "#ced4da")


def can_draw() -> bool:
    """Whether Matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def as_svg(chart: Chart, number: int) -> str:
    """The plot as an element of a page, whose ids begin with its number there."""
    file = io.StringIO()
    with _style(_INK, _RULE):
        _draw(chart).savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>c{number}-", svg)
    svg = svg.replace(_INK, "currentColor").replace(_RULE, "var(--rule)")
    for place, colour in enumerate(_COLOURS):
        svg = svg.replace(colour, f"var(--line-{place})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(chart.title)}"', 1)


def write_png(chart: Chart, directory: Path) -> Path:
    """Write the plot as ``NAME.png``.

    Raises:
        OctavoError: there is no Matplotlib.
    """
    if not can_draw():
        raise OctavoError(HOW_TO_GET)
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{chart.name}.png"
    with _style(*_PRINTED):
        figure = _draw(chart)
        figure.suptitle(chart.title, fontsize=11)
        figure.savefig(file, dpi=160, facecolor="white")
    return file


def _style(ink: str, rule: str) -> AbstractContextManager[None]:
    import matplotlib

    settings: Any = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": "octavo",
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": ink,
        "axes.edgecolor": rule,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": rule,
    }
    colours: AbstractContextManager[None] = matplotlib.rc_context(settings)
    return colours


def _draw(chart: Chart) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.3), layout="constrained")
    axes = figure.add_subplot()
    _frame(axes, chart)
    right = None
    if any(series.right for series in chart.series):
        right = axes.twinx()
        right.set_ylabel(chart.right_label)
        right.spines[["top", "left", "bottom"]].set_visible(False)
        right.tick_params(length=0)
    _plot(chart, axes, right)
    if chart.log_x and not chart.x_ticks:
        _log_axis(axes, sorted({x for series in chart.series for x in series.x}))
    return figure


def _frame(axes: "Axes", chart: Chart) -> None:
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    axes.grid(visible=True, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0)
    if chart.x_ticks:
        axes.set_xticks(range(len(chart.x_ticks)), chart.x_ticks)


def _plot(chart: Chart, axes: "Axes", right: "Axes | None") -> None:
    handles = []
    for number, series in enumerate(chart.series):
        where = right if series.right and right is not None else axes
        colour = _COLOURS[number % len(_COLOURS)]
        (line,) = where.plot(
            series.x,
            series.y,
            color=colour,
            linewidth=1.8,
            linestyle=_DASHES[number % len(_DASHES)],
            marker=_MARKS[number % len(_MARKS)] if chart.marks else None,
            markersize=4.5,
            label=series.name,
        )
        handles.append(line)
        if series.low is not None and series.high is not None:
            if series.bars:
                where.vlines(series.x, series.low, series.high, color=colour, alpha=0.5, linewidth=4)
            else:
                where.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0)
    for each in (axes, right):
        if each is not None and chart.from_zero:
            top = each.dataLim.ymax
            each.set_ylim(0, top * 1.08 if 0 < top < float("inf") else 1)
    if len(handles) > 1:
        axes.legend(handles=handles, frameon=False, fontsize=9, labelcolor="linecolor")


def _log_axis(axes: "Axes", places: list[float]) -> None:
    """Powers of two, named where something was measured."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [f"{x:,g}" for x in places])
    axes.minorticks_off()
