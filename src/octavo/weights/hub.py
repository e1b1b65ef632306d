"""Models on the Hugging Face hub, through ``huggingface_hub``: its cache, its resume, its credentials."""

import glob
import io
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.core.errors import ModelNotFound
from octavo.weights.names import is_gguf
from octavo.weights.progress import Progress

# Everything the loaders may read next to the weights.
_SIDE_FILES = frozenset(
    {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors.index.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
)

_LISTING_TIMEOUT_S = 10.0


def fetch_from_hub(
    repo_id: str, hint: str | None, cache_dir: Path | None, *, progress: Progress, endpoint: str | None = None
) -> Path:
    """The directory of a safetensors model, or a GGUF file, downloaded as far as the cache lacks it.

    Args:
        repo_id: ``"org/name"``.
        hint: a GGUF file of the repository, or a part of its name such as ``"Q8_0"``.
        cache_dir: where to keep it; None is the hub's own cache, shared with other libraries.
        progress: told about the bytes of the download.
        endpoint: another hub than the public one.

    Raises:
        ModelNotFound: no such repository or file, no access, or no connection and not in the cache.
    """
    from huggingface_hub import HfApi, snapshot_download

    # The library and the HTTP client below it raise errors of many unrelated kinds; all mean the same here.
    try:
        # Not list_repo_files: without a network that keeps trying for twenty seconds.
        listing = HfApi(endpoint=endpoint).model_info(repo_id, timeout=_LISTING_TIMEOUT_S).siblings
        files = [file.rfilename for file in listing or []]
    except Exception as error:
        return _find_cached(repo_id, hint, cache_dir, error)
    wanted = choose_files(repo_id, files, hint)
    try:
        snapshot = snapshot_download(
            repo_id,
            cache_dir=cache_dir,
            endpoint=endpoint,
            allow_patterns=[glob.escape(name) for name in wanted],
            tqdm_class=_reporting_bar(f"{repo_id}: downloading", progress),
        )
    except Exception as error:
        raise ModelNotFound(f"the download of {repo_id} failed: {_first_line(error)}") from error
    return _entry_point(Path(snapshot), wanted)


def _find_cached(repo_id: str, hint: str | None, cache_dir: Path | None, reason: Exception) -> Path:
    """What the cache has of a repository that the hub did not list, for ``reason``."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        # No pattern: any snapshot will do, whether it was fetched in full or in part.
        snapshot = Path(
            snapshot_download(repo_id, cache_dir=cache_dir, local_files_only=True, allow_patterns=[])
        )
    except Exception as error:
        refused = isinstance(reason, RepositoryNotFoundError)
        problem = (
            "and the hub shows no such model (if it is private or gated, log in with 'hf auth login')"
            if refused
            else "the model is not in the cache, and the hub cannot be reached"
        )
        raise ModelNotFound(f"no directory {repo_id!r} here, {problem}: {_first_line(reason)}") from error
    files = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    return _entry_point(snapshot, choose_files(repo_id, files, hint))


def list_hub_models(cache_dir: Path | None) -> list[tuple[str, Path, int]]:
    """The models in the hub's cache that can be resolved without a network: (name, path, bytes)."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(cache_dir).repos
    except CacheNotFound:
        return []
    found = []
    for repo in repos:
        revision = max(repo.revisions, key=lambda revision: revision.last_modified, default=None)
        if repo.repo_type != "model" or revision is None:
            continue
        snapshot = revision.snapshot_path
        sizes = {
            file.file_path.relative_to(snapshot).as_posix(): file.size_on_disk for file in revision.files
        }
        if "config.json" in sizes and any(name.endswith(".safetensors") for name in sizes):
            found.append((repo.repo_id, snapshot, sum(sizes.values())))
        for name, num_bytes in sizes.items():
            if is_gguf(name):
                found.append((f"{repo.repo_id}:{name}", snapshot / name, num_bytes))
    return found


def choose_files(repo_id: str, files: Sequence[str], hint: str | None) -> list[str]:
    """The files of a repository to fetch: config, tokenizer and safetensors files, or one GGUF file.

    Raises:
        ModelNotFound: neither is there, or several GGUF files are and ``hint`` does not single one out.
    """
    weights = [name for name in files if "/" not in name and name.endswith(".safetensors")]
    # Some repositories hold the same weights a second time under the names of another program.
    weights = [name for name in weights if name.startswith("model")] or weights
    if hint is None and weights and "config.json" in files:
        return sorted(weights + [name for name in files if _is_side_file(name)])
    gguf_files = sorted(name for name in files if is_gguf(name))
    if not gguf_files:
        raise ModelNotFound(
            f"{repo_id} has no GGUF file" + (f" to match {hint!r}" if hint else " and no safetensors model")
        )
    matches = [name for name in gguf_files if hint is None or _matches(name, hint)]
    if hint in gguf_files:
        matches = [hint]
    if len(matches) != 1:
        problem = "has several GGUF files" if matches else f"has no GGUF file that matches {hint!r}"
        raise ModelNotFound(
            f"{repo_id} {problem}; write '{repo_id}:NAME' with one of {', '.join(matches or gguf_files)}"
        )
    return matches


def _is_side_file(name: str) -> bool:
    folder, _, file = name.rpartition("/")
    return name in _SIDE_FILES or (folder == "additional_chat_templates" and file.endswith(".jinja"))


def _matches(file_name: str, hint: str) -> bool:
    """Whether ``hint`` is a whole part of the name: Q4_K is not Q4_K_M."""
    pattern = rf"(?<![a-z0-9_]){re.escape(hint.lower())}(?![a-z0-9_])"
    return re.search(pattern, file_name.lower()) is not None


def _entry_point(snapshot: Path, wanted: Sequence[str]) -> Path:
    return snapshot / wanted[0] if is_gguf(wanted[0]) else snapshot


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _reporting_bar(label: str, progress: Progress) -> type[Any]:
    """A progress bar class for the hub library that draws nothing and reports bytes instead."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    bars: list[Any] = []
    lock = threading.Lock()

    class ReportingBar(tqdm):
        monitor_interval = 0  # no watching thread

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            quiet = {"disable": False, "file": io.StringIO(), "mininterval": 0.1, "miniters": 0}
            super().__init__(*args, **(kwargs | quiet))  # type: ignore[no-untyped-call]
            if kwargs.get("unit") == "B":
                bars.append(self)

        def display(self, *args: Any, **kwargs: Any) -> None:
            with lock:
                if bars:
                    # One bar counts what arrives, another what is written; they may cover the same bytes.
                    done_bytes = max(int(bar.n) for bar in bars)
                    total_bytes = max(int(bar.total or 0) for bar in bars)
                    progress(label, done_bytes, total_bytes or None)

    return ReportingBar
