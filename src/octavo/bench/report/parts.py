"""What a report consists of, whatever shows it: a terminal, a page, a spreadsheet."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Tile:
    """A number that matters most."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table; the first column names its rows.

    Attributes:
        raw: the same cells as plain numbers or texts, for CSV; None is ``rows``.
        raw_columns: names without spaces, for CSV; empty is ``columns``.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    raw: Sequence[Sequence[object]] | None = None
    raw_columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a plot.

    Attributes:
        low, high: a band around it, such as confidence intervals.
        right: drawn against the axis on the right.
        bars: low and high are bars at the points: nothing is known between these.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    right: bool = False
    bars: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A plot.

    Attributes:
        name: short, for files.
        caption: what it shows, in a sentence.
        x_ticks: names of the places 0, 1, 2, ... if x is no number.
        marks: whether the points are marked: few that were measured, not a curve of many.
        from_zero: whether the upright axes begin at 0; ratios near 1 could not be told apart there.
    """

    name: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    right_label: str = ""
    x_ticks: Sequence[str] = ()
    log_x: bool = False
    marks: bool = True
    from_zero: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report.

    Attributes:
        headline: the answer in one sentence.
        facts: what was measured on what: pairs of name and text.
        command: how to do it again.
        more_charts: those that come after the tables.
    """

    title: str
    headline: str
    tiles: Sequence[Tile]
    facts: Sequence[tuple[str, str]]
    command: str
    warnings: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    sheets: Sequence[Sheet] = field(default_factory=tuple)
    more_charts: Sequence[Chart] = ()
    footer: str = ""
