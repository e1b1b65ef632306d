"""Files that reports go to: tried before anything is measured, and never half written."""

import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from octavo.core.errors import InvalidConfig, OctavoError

# What lies there are not files of these directories, but devices, and what a process has open.
_STREAMS: Final = (Path("/dev"), Path("/proc"))


def check_file(file: Path) -> None:
    """That a file can be written; one that is there stays as it is.

    Raises:
        OctavoError: it cannot; says why.
    """
    _refuse_dash(file)
    with _told(file):
        if _is_stream(file):
            _try_stream(file)
            return
        if file.is_dir():
            raise OctavoError(f"cannot write {file}: it is a directory")
        target = Path(os.path.realpath(file))
        if not target.parent.is_dir():
            raise OctavoError(f"cannot write {file}: there is no directory {target.parent}")
        if target.exists() and not os.access(target, os.W_OK):
            raise OctavoError(f"cannot write {file}: it may not be changed (chmod u+w)")
        with _beside(target):
            pass


def check_folder(folder: Path) -> None:
    """That files can be written into a directory, which need not be there yet.

    Raises:
        OctavoError: they cannot; says why.
    """
    _refuse_dash(folder)
    with _told(folder):
        there = folder.absolute()
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir():
            raise OctavoError(f"cannot write into {folder}: {there} is no directory")
        with _beside(there / "any"):
            pass


def check_distinct(files: Mapping[str, Path | None]) -> None:
    """That no two options name the same file. Devices and pipes may be shared.

    Raises:
        InvalidConfig: two do; names them.
    """
    seen: dict[str, str] = {}
    for option, file in files.items():
        if file is None or _is_stream(file):
            continue
        other = seen.setdefault(os.path.realpath(file), option)
        if other != option:
            raise InvalidConfig(f"{other} and {option} are both {file}: give each a file of its own")


def write_text(file: Path, text: str) -> None:
    """Write all of a file, or leave the one that is there as it is. What UTF-8 does not have becomes "?".

    Raises:
        OSError: it cannot be written.
    """
    if _is_stream(file):
        file.write_text(text, encoding="utf-8", errors="replace")
        return
    target = Path(os.path.realpath(file))  # a link stays one
    with _beside(target) as part:
        part.write_text(text, encoding="utf-8", errors="replace")
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)


def keep(report: Mapping[str, Any]) -> str:
    """Write a report where there is place for it; says where."""
    text = json.dumps(report)
    try:
        handle, name = tempfile.mkstemp(prefix="octavo-", suffix=".json")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        print(text, flush=True)
        return "printed"
    return f"in {name}"


def _refuse_dash(file: Path) -> None:
    """Many programs take it for standard output; a file of that name is hardly what is meant."""
    if file == Path("-"):
        raise OctavoError("cannot write -: name a file; --json prints the JSON object to standard output")


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A new file in the directory of another, which is gone afterwards if it was not moved."""
    part = target.with_name(f".octavo-{secrets.token_hex(6)}.part")
    part.touch(exist_ok=False)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _told(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OctavoError(f"cannot write {file}: {error.strerror}") from error


def _is_stream(file: Path) -> bool:
    """Whether it is written to as it is: a device, a pipe, or what stands for an open file."""
    if not file.exists() or file.is_dir():
        return False
    return not file.is_file() or any(file.absolute().is_relative_to(place) for place in _STREAMS)


def _try_stream(file: Path) -> None:
    """Raises OSError if it takes nothing. Pipes are not opened: their readers would see an end."""
    if not os.access(file, os.W_OK):
        raise PermissionError(13, "permission denied")
    if stat.S_ISCHR(file.stat().st_mode):
        handle = os.open(file, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            os.write(handle, b"")  # which a full device refuses
        finally:
            os.close(handle)
