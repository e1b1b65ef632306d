"""Where reports go: tried before anything is measured, whole or not at all, and never lost."""

import io
import json
import os
import re
import stat
import sys
import threading
from pathlib import Path

import pytest

from octavo.bench.report.parts import Chart, Document, Series, Sheet
from octavo.cli.bench.delivering import Delivery, deliver
from octavo.cli.bench.writing import check_file, check_folder, write_text
from octavo.core.errors import InvalidConfig, OctavoError

REPORT = {"schema_version": 1, "value": 0.1}


def document(_):
    chart = Chart("plot", "Plot", "caption", "x", "y", [Series("s", [1, 2], [3, 4])])
    return Document(
        title="title",
        headline="as fast as \ud800",
        tiles=[],
        facts=[],
        command="octavo",
        warnings=[],
        charts=[chart],
        more_charts=[],
        sheets=[Sheet("Points", ["a"], [["1"]], raw_columns=["a"])],
        footer="",
    )


def delivery(**files):
    return Delivery(**{"as_json": False, "output": None, "html": None, "png": None, **files})


def test_everything_that_was_asked_for(tmp_path, capsys):
    there = tmp_path / "there.json"
    there.write_text("old")
    there.chmod(0o640)
    (tmp_path / "link.html").symlink_to("page.html")
    delivery(
        as_json=True,
        output=there,
        html=tmp_path / "link.html",
        png=tmp_path / "new" / "folder",
        csv=tmp_path / "new" / "folder",
    ).give(REPORT, document)
    assert json.loads(capsys.readouterr().out) == json.loads(there.read_text()) == REPORT
    assert stat.S_IMODE(there.stat().st_mode) == 0o640
    assert (tmp_path / "link.html").is_symlink()
    assert "as fast as \\ud800" in (tmp_path / "page.html").read_text()  # half a character cannot be written
    assert {file.name for file in (tmp_path / "new" / "folder").iterdir()} == {"plot.png", "points.csv"}
    assert {file.name for file in tmp_path.iterdir()} == {"there.json", "link.html", "page.html", "new"}


def test_what_cannot_be_written_is_told_before(tmp_path):
    (tmp_path / "file").write_text("mine")
    for bad, why in (
        (tmp_path, "is a directory"),
        (tmp_path / "none" / "x", "there is no directory"),
        (tmp_path / "file" / "x", "there is no directory"),
        (Path("/proc/x"), "cannot write /proc/x"),
        (Path("/dev/full"), "No space left"),
        (tmp_path / ("x" * 300), "too long"),
        (Path("-"), "--json prints the JSON object to standard output"),
    ):
        with pytest.raises(OctavoError, match=why):
            check_file(bad)
    for bad in (tmp_path / "file", tmp_path / "file" / "x", Path("/proc/none/x"), Path("-")):
        with pytest.raises(OctavoError, match="cannot write"):
            check_folder(bad)
    check_file(tmp_path / "file")
    check_file(tmp_path / "new")
    check_file(Path("/dev/null"))
    check_folder(tmp_path / "new" / "er")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("file", "mine")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_not_be_written_is_told_before(tmp_path):
    (tmp_path / "file").touch(0o444)
    with pytest.raises(OctavoError, match="may not be changed"):
        check_file(tmp_path / "file")
    tmp_path.chmod(0o555)
    with pytest.raises(OctavoError, match="Permission denied"):
        check_file(tmp_path / "new")


@pytest.mark.parametrize("option", ["--output", "--html", "--png"], ids=["JSON", "page", "plots"])
def test_commands_try_their_outputs_first(run, fake, tmp_path, option):
    server = fake()
    (tmp_path / "file").write_text("mine")
    bad = tmp_path / "file" if option == "--png" else "/dev/full"
    status, out, err = run("bench", "serve", server.url, option, bad)
    assert (status, out) == (1, "")
    assert err.startswith("octavo: cannot write")
    assert server.asked == []
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("command", [("tune",), ("bench", "sweep"), ("bench", "scenes"), ("bench", "paging")])
def test_others_do_too(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(*command, "--output", "/dev/full")
    assert (status, err) == (1, "octavo: cannot write /dev/full: No space left on device\n")
    assert list(tmp_path.iterdir()) == []


def test_no_two_are_the_same_file(run, tmp_path, monkeypatch):
    x, null = tmp_path / "x", Path("/dev/null")
    (tmp_path / "also_x").symlink_to("x")
    for files in (
        {"output": x, "html": x},
        {"output": x, "html": tmp_path / "also_x"},
        {"html": x, "png": x},
        {"output": x, "besides": {"--journal": tmp_path / "." / "x"}},
    ):
        with pytest.raises(InvalidConfig, match=r"--\w+ and --\w+ are both .*: give each a file of its own"):
            delivery(**files)
    delivery(output=null, html=null, png=tmp_path, csv=tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in (["tune", "-o", "x"], ["bench", "sweep", "-o", "x"]):
        status, _, err = run(*command, "--journal", "./x")
        assert (status, "--output and --journal are both x" in err) == (1, True)


def test_a_file_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    file = tmp_path / "x"
    file.write_text("old")

    def full(self, text, **_):
        with self.open("w") as half:
            half.write(text[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_text(file, "new text")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("x", "old")]


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    check_file(pipe)
    write_text(pipe, "text")
    reader.join(60)
    assert read == ["text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_by_its_name_is_not_replaced(tmp_path):
    with (tmp_path / "x").open("w") as file:
        name = Path(f"/dev/fd/{file.fileno()}")
        check_file(name)
        before = (tmp_path / "x").stat().st_ino
        write_text(name, "text")
    assert ((tmp_path / "x").stat().st_ino, (tmp_path / "x").read_text()) == (before, "text")


def kept(err):
    """The report that was kept, as standard error says."""
    file = Path(re.search(r"^octavo: the report is in (\S+\.json)$", err, re.MULTILINE)[1])
    found = json.loads(file.read_text())
    file.unlink()
    return found


def test_a_report_that_cannot_be_written_is_kept(tmp_path, capsys):
    gone = tmp_path / "gone"
    with pytest.raises(OctavoError, match=r"cannot write .*x: No such file or directory; cannot write .*y:"):
        delivery(output=gone / "x", html=gone / "y", csv=tmp_path).give(REPORT, document)
    told = capsys.readouterr()
    assert kept(told.err) == REPORT
    assert "as fast as" in told.out  # and what can be written is
    assert (tmp_path / "points.csv").exists()


def test_a_report_that_is_somewhere_is_not_kept_twice(tmp_path, capsys):
    with pytest.raises(OctavoError, match=r"cannot write .*y"):
        delivery(as_json=True, html=tmp_path / "gone" / "y").give(REPORT, document)
    told = capsys.readouterr()
    assert (json.loads(told.out), told.err) == (REPORT, "")


def test_a_report_that_cannot_be_drawn_is_kept(tmp_path, capsys):
    with pytest.raises(ZeroDivisionError):
        delivery(html=tmp_path / "x").give(REPORT, lambda _: 1 / 0)
    assert kept(capsys.readouterr().err) == REPORT


class Full(io.StringIO):
    def flush(self):
        raise OSError(28, "No space left on device")


def test_a_report_that_cannot_be_printed_is_kept(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(OctavoError, match="cannot write standard output: No space left"):
        deliver(REPORT, True, None)
    monkeypatch.undo()
    assert kept(capsys.readouterr().err) == REPORT


class Closed(io.StringIO):
    def flush(self):
        raise BrokenPipeError(32, "Broken pipe")


def test_a_report_whose_reader_has_gone_is_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Closed())
    for output in (None, tmp_path / "x"):
        with pytest.raises(BrokenPipeError):
            deliver(REPORT, True, output)
    monkeypatch.undo()
    assert kept(told := capsys.readouterr().err) == REPORT
    assert told.count("octavo:") == 1  # not of the second, which is in the file


def test_without_a_place_for_files_it_is_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(OctavoError, match="cannot write"):
        deliver(REPORT, False, tmp_path / "gone" / "x")
    told = capsys.readouterr()
    assert (json.loads(told.out), told.err) == (REPORT, "octavo: the report is printed\n")
