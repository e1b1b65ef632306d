"""A report on terminals of different widths."""

import pytest

from octavo.bench.report.parts import Document, Sheet, Tile
from octavo.bench.report.terminal import print_document
from octavo.bench.tables import print_table, wrapped

COMMAND = "octavo bench compare --server a=http://127.0.0.1:8080 --server b=http://127.0.0.1:8081 -n 1000"
WORDS = "some words that go on for longer than a line of a terminal has room for, and then for some more"
DOCUMENT = Document(
    title="octavo bench compare",
    headline=WORDS,
    tiles=[Tile("output tokens/s", "2.05 x", WORDS), Tile("TTFT p50", "10.5 x")],
    facts=[("Workload", WORDS), ("A rather long name", WORDS)],
    command=COMMAND,
    warnings=[WORDS],
    sheets=[Sheet("A table", ["", "a", "b"], [["row", "1", "2"]], WORDS)],
    footer=f"Octavo 1.2.3, 2026-01-01. {WORDS}",
)


@pytest.mark.parametrize("width", [60, 80])
def test_all_but_the_command_is_wrapped_to_the_width(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    print_document(DOCUMENT)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert f"  Command   {COMMAND}" in lines  # in one piece, to be copied
    assert max(len(line) for line in lines if "Command" not in line) <= width
    assert out.split().count("words") == 7  # nothing is cut


def test_lines_go_on_below_the_text(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    print_document(DOCUMENT)
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("  Workload  some words that go on for longer than a line of")
    assert lines[at + 1] == "            a terminal has room for, and then for some more"
    at = next(i for i, line in enumerate(lines) if line.startswith("  A rather long name some words"))
    assert lines[at + 1].startswith(" " * 12 + "line of a terminal")
    assert "  TTFT p50         10.5 x" in lines
    assert lines[-3].startswith("Octavo 1.2.3, 2026-01-01. some")


def test_a_line_without_room_is_left_to_the_terminal():
    assert wrapped("a beginning: ", "one two-three", 10) == "a beginning: one two-three"
    assert wrapped("  x ", "", 80) == "  x"


def test_a_table_that_is_too_wide_becomes_several(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "24")
    print_table("Title", ["", "first", "second", "the third"], [["row", "1" * 8, "2", "3"]])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "Title",
        "        first  second",
        "row  11111111       2",
        "",
        "     the third",
        "row          3",
        "",
    ]


def test_a_column_that_never_fits_has_a_table_of_its_own(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "12")
    print_table("T", ["", "a column", "b"], [["row", "1", "2"]])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["T"], ["a"], ["column"], ["row", "1"], [], ["b"], ["row", "2"], [],
    ]  # fmt: skip
