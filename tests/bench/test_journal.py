"""Journals: cut anywhere they are gone on with, and what is none is left as it is."""

import json
import os

import pytest

from octavo.bench.sweep.journal import Journal
from octavo.bench.sweep.runner import run_points
from octavo.core.errors import InvalidConfig, OctavoError

SETTINGS = {"model": "m", "seed": 0}
HEAD = {"machine": {"cpu": "C"}, "octavo": "1", "settings": SETTINGS}
AXES = ("block_size", "context", "concurrency", "shared_prefix", "max_step_tokens", "kv_dtype")


def entry(number):
    return {"point": dict.fromkeys(AXES, number), "error": None}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "j.jsonl"


def test_cut_at_any_byte_it_goes_on(file, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of them, on a disk that may be slow
    with Journal(file) as journal:
        journal.begin(HEAD)
        journal.add(entry(1))
        journal.add(entry(2))
    whole = file.read_bytes()
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        left = max(0, whole[:size].count(b"\n") - 1)  # points whose lines are complete
        with Journal(file) as journal:
            assert journal.is_new == (left == 0)
            assert len(journal.points) == left
            assert journal.begin(HEAD) == HEAD
            for number in range(left + 1, 3):
                journal.add(entry(number))
        assert file.read_bytes() == whole


def test_the_first_head_stays_while_there_are_points(file):
    with Journal(file) as journal:
        journal.begin({**HEAD, "octavo": "0"})
    with Journal(file) as journal:
        assert journal.begin(HEAD) == HEAD  # nothing was measured under the other
        journal.add(entry(1))
    with Journal(file) as journal:
        assert journal.begin({**HEAD, "octavo": "2"}) == HEAD


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({**SETTINGS, "seed": 1}, "seed=0, not 1"),
        ({**SETTINGS, "cpu": "D"}, "cpu=None, not 'D'"),
        ({"model": "m"}, "seed=0, not None"),
    ],
)
def test_other_settings_are_refused(file, now, told):
    with Journal(file) as journal:
        journal.begin(HEAD)
        journal.add(entry(1))
        with pytest.raises(InvalidConfig, match=f"was begun with {told}"):
            journal.begin({**HEAD, "settings": now})


FOREIGN = (
    b"my only line",
    b"my only line\n",
    b"\x00\xff\xfe",
    b'{"kind": "race", "settings": {}}\n',
    b'{"kind": "race", "settings": {}',
    b'{"kind": "sweep"}\n',
    b'{"kind": "sweep", "settings": 3}\n',
    b'{"kind": "point", "point": {}}\n',
    b"[" * 100_000 + b"\n",
    b'{"kind": "sweep", "settings": {}}\nmy notes',
    b'{"kind": "sweep", "settings": {}}\nmy notes\n',
    b"\n",
)


@pytest.mark.parametrize("foreign", FOREIGN, ids=range(len(FOREIGN)))
def test_what_is_no_journal_is_left_as_it_is(file, foreign):
    file.write_bytes(foreign)
    with pytest.raises(OctavoError, match=r"j.jsonl:\d: no line of a sweep"):
        Journal(file)
    assert file.read_bytes() == foreign


def test_only_files_can_be_journals(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", "/dev/null"):
        with pytest.raises(OctavoError, match="no regular file"):
            Journal(type(tmp_path)(other))
    for other in (tmp_path, tmp_path / "none" / "j"):
        with pytest.raises(OctavoError, match="cannot open"):
            Journal(other)


def test_a_full_disk_is_told_and_what_was_there_stays(file, monkeypatch):
    with Journal(file) as journal:
        journal.begin(HEAD)
        journal.add(entry(1))
        whole = file.read_bytes()

        def full(_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OctavoError, match=r"cannot write .*j.jsonl: No space left"):
            journal.add(entry(2))
        assert entry(2)["point"] not in [each["point"] for each in journal.points.values()]
    assert file.read_bytes().startswith(whole)


def test_points_that_are_there_are_not_measured_again(file, monkeypatch):
    ran = []
    monkeypatch.setattr(
        "octavo.bench.sweep.runner.measure", lambda command: ran.append(command) or {"error": None}
    )
    settings = {"model": "m", "requests_per_user": 1, "output_len": 2, "repeats": 1, "seed": 0}
    points = [{**dict.fromkeys(AXES, 8), "shared_prefix": 0, "context": length} for length in (8, 16, 32)]
    with Journal(file) as journal:
        journal.begin(HEAD)
        run_points(points[:2], settings, journal, on_point=lambda _: None)
        run_points(points, settings, journal, on_point=lambda _: None)
    assert len(ran) == 3
    assert [json.loads(line)["point"]["context"] for line in file.read_text().splitlines()[1:]] == [8, 16, 32]
