"""Models from a hub, against a stand-in on this machine."""

import hashlib
import json
import time
from pathlib import Path

import pytest
from huggingface_hub import constants as hub_constants
from source_case import CONTENT, Server, Steps, everything_below

from octavo.core.errors import ModelNotFound
from octavo.weights.hub import choose_files, fetch_from_hub
from octavo.weights.progress import ignore_progress
from octavo.weights.sources import list_cached, resolve

# The hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SAFETENSORS_REPO = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "other/additional_chat_templates/tool_use.jinja": b"not wanted",
    "README.md": b"# A model",
    "pytorch_model.bin": b"not wanted",
    "original/model.safetensors": b"not wanted",
    "consolidated.safetensors": b"not wanted",
    "model-00001-of-00002.safetensors": CONTENT,
    "model-00002-of-00002.safetensors": CONTENT[::-1],
    "model.safetensors.index.json": b'{"weight_map": {}}',
}
GGUF_REPO = {
    "README.md": b"# A model",
    "toy-Q4_K.gguf": b"4k",
    "toy-Q4_K_M.gguf": b"4km",
    "toy-Q8_0.gguf": CONTENT,
}


class Hub:
    """The part of the hub's protocol that a download needs; large files are in a storage of their own."""

    def __init__(self, server: Server, storage: Server) -> None:
        self.server = server
        self.storage = storage
        self.url = server.url
        self.break_once: set[str] = set()

    def add(self, repo_id: str, files: dict[str, bytes]) -> None:
        info = {
            "id": repo_id,
            "modelId": repo_id,
            "sha": COMMIT,
            "private": False,
            "tags": [],
            "downloads": 0,
        }
        info["siblings"] = [{"rfilename": name} for name in files]
        tree = [self._describe(name, content) for name, content in files.items()]
        routes = self.server.routes
        for revision in ("", "/revision/main", f"/revision/{COMMIT}"):
            routes[f"/api/models/{repo_id}{revision}"] = lambda handler: self._json(handler, info)
        for revision in ("main", COMMIT):
            routes[f"/api/models/{repo_id}/tree/{revision}"] = lambda handler: self._json(handler, tree)
            for name, content in files.items():
                routes[f"/{repo_id}/resolve/{revision}/{name}"] = self._file_route(name, content)

    def ranges_asked(self, name: str) -> list[str | None]:
        """The Range headers of the requests for a large file's bytes."""
        return [asked for verb, path, asked in self.storage.requests if (verb, path) == ("GET", f"/{name}")]

    def fetch(self, repo_id: str, hint: str | None, cache: Path, progress=ignore_progress) -> Path:
        return fetch_from_hub(repo_id, hint, cache, progress=progress, endpoint=self.url)

    @staticmethod
    def _describe(name: str, content: bytes) -> dict[str, object]:
        described = {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
        if len(content) > 1000:
            described["lfs"] = {
                "oid": hashlib.sha256(content).hexdigest(),
                "size": len(content),
                "pointerSize": 1,
            }
        return described

    @staticmethod
    def _json(handler, value: object) -> None:
        handler.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _file_route(self, name: str, content: bytes):
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        if len(content) <= 1000:
            return lambda handler: handler.reply(200, content, {"ETag": etag, "X-Repo-Commit": COMMIT})
        self.storage.routes[f"/{name}"] = lambda handler: self._stored_file(handler, name, content)
        headers = {
            "Location": f"{self.storage.url}/{name}",
            "X-Linked-Size": str(len(content)),
            "X-Linked-Etag": etag,
            "X-Repo-Commit": COMMIT,
        }
        return lambda handler: handler.reply(302, b"", headers)

    def _stored_file(self, handler, name: str, content: bytes) -> None:
        if name in self.break_once and handler.command == "GET":
            self.break_once.remove(name)
            handler.break_off(content, len(content) // 2)
            return
        asked = handler.headers.get("Range")
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        headers = {"ETag": etag, "X-Repo-Commit": COMMIT}
        if asked is None:
            handler.reply(200, content, headers)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        span = f"bytes {start}-{len(content) - 1}/{len(content)}"
        handler.reply(206, content[start:], headers | {"Content-Range": span})


@pytest.fixture
def hub(server, monkeypatch):
    # Whatever this machine's settings of the hub library are.
    monkeypatch.setattr(hub_constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    storage = Server()
    hub = Hub(server, storage)
    hub.add("org/safe", SAFETENSORS_REPO)
    hub.add("org/quants", GGUF_REPO)
    yield hub
    storage.close()


def test_a_hub_model_brings_the_files_that_are_needed(tmp_path, hub):
    steps = Steps()
    directory = resolve("org/safe", cache_dir=tmp_path, hub_endpoint=hub.url, progress=steps)
    wanted = {
        "config.json",
        "tokenizer.json",
        "additional_chat_templates/tool_use.jinja",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    }
    assert set(everything_below(directory)) == wanted | {"additional_chat_templates"}
    assert all((directory / name).read_bytes() == SAFETENSORS_REPO[name] for name in wanted)
    assert directory.is_relative_to(tmp_path / "hub")
    total = sum(len(SAFETENSORS_REPO[name]) for name in wanted)
    assert {label for label, _, _ in steps} == {"org/safe: downloading"}
    assert steps[-1][1:] == (total, total)
    assert list_cached(tmp_path) == [("org/safe", directory, total)]


def test_a_hub_model_is_not_fetched_twice(tmp_path, hub):
    first = hub.fetch("org/safe", None, tmp_path)
    assert hub.ranges_asked("model-00001-of-00002.safetensors") == [None]
    assert hub.fetch("org/safe", None, tmp_path) == first
    assert hub.ranges_asked("model-00001-of-00002.safetensors") == [None]


def test_a_gguf_file_of_a_hub_model(tmp_path, hub):
    for hint in ("toy-Q8_0.gguf", "Q8_0", "q8_0"):
        file = resolve(f"org/quants:{hint}", cache_dir=tmp_path, hub_endpoint=hub.url)
        assert (file.name, file.read_bytes()) == ("toy-Q8_0.gguf", CONTENT)
    assert everything_below(file.parent) == ["toy-Q8_0.gguf"]
    assert hub.ranges_asked("toy-Q8_0.gguf") == [None]
    assert not any("Q4_K" in path for _, path, _ in hub.server.requests + hub.storage.requests)
    assert list_cached(tmp_path) == [("org/quants:toy-Q8_0.gguf", file, len(CONTENT))]


def test_a_broken_hub_download_goes_on_where_it_stopped(tmp_path, hub, monkeypatch):
    monkeypatch.setattr(hub_constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.break_once.add("toy-Q8_0.gguf")
    steps = Steps()
    try:
        file = hub.fetch("org/quants", "Q8_0", tmp_path, steps)
    except ModelNotFound as error:
        # Older versions of the library go on at the next call, later ones by themselves.
        assert "the download of org/quants failed: " in str(error)  # noqa: PT017
        file = hub.fetch("org/quants", "Q8_0", tmp_path, steps)
    assert file.read_bytes() == CONTENT
    first, second = hub.ranges_asked("toy-Q8_0.gguf")
    assert first is None
    start = int(second.removeprefix("bytes=").removesuffix("-"))
    assert len(CONTENT) // 4 < start <= len(CONTENT) // 2
    assert steps[-1][1:] == (len(CONTENT), len(CONTENT))


def test_a_hub_model_in_the_cache_needs_no_hub(tmp_path, hub):
    directory = hub.fetch("org/safe", None, tmp_path)
    file = hub.fetch("org/quants", "Q8_0", tmp_path)
    hub.url = "http://127.0.0.1:9"  # nobody listens there
    assert hub.fetch("org/safe", None, tmp_path) == directory
    assert hub.fetch("org/quants", "Q8_0", tmp_path) == file
    assert hub.fetch("org/quants", None, tmp_path) == file
    with pytest.raises(ModelNotFound, match=r"no GGUF file that matches 'Q4_K'; .* one of toy-Q8_0\.gguf"):
        hub.fetch("org/quants", "Q4_K", tmp_path)
    with pytest.raises(ModelNotFound, match="not in the cache, and the hub cannot be reached: "):
        hub.fetch("org/other", None, tmp_path)


def test_an_unknown_hub_model(tmp_path, hub):
    with pytest.raises(ModelNotFound, match="no directory 'org/none' here, and the hub shows no such model"):
        hub.fetch("org/none", None, tmp_path)


def test_a_hub_that_fails_in_mid_download(tmp_path, hub):
    hub.storage.routes["/toy-Q8_0.gguf"] = lambda handler: handler.reply(503, b"later")
    with pytest.raises(ModelNotFound, match="the download of org/quants failed: "):
        hub.fetch("org/quants", "Q8_0", tmp_path)
    assert list_cached(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "hint", "chosen"),
    [
        (["config.json", "a.safetensors", "README.md"], None, ["a.safetensors", "config.json"]),
        (["config.json", "model.safetensors", "m.gguf"], None, ["config.json", "model.safetensors"]),
        (["config.json", "model.safetensors", "m.gguf"], "m.gguf", ["m.gguf"]),
        (["config.json", "m.gguf"], None, ["m.gguf"]),
        (["config.json", "M-Q8_0.GGUF"], "q8_0", ["M-Q8_0.GGUF"]),
        (["q/m-Q8_0.gguf", "m-Q4_0.gguf"], "q8_0", ["q/m-Q8_0.gguf"]),
        (["m-Q4_K.gguf", "m-Q4_K_M.gguf"], "Q4_K", ["m-Q4_K.gguf"]),
        (["m.Q4_0.gguf", "m.Q4_0.gguf.gguf"], "m.Q4_0.gguf", ["m.Q4_0.gguf"]),
    ],
)
def test_choice_of_files(files, hint, chosen):
    assert choose_files("org/name", files, hint) == chosen


@pytest.mark.parametrize(
    ("files", "hint", "message"),
    [
        ([], None, "has no GGUF file and no safetensors model"),
        (["config.json", "pytorch_model.bin"], None, "has no GGUF file and no safetensors model"),
        (["config.json", "model.safetensors"], "Q8_0", "has no GGUF file to match 'Q8_0'"),
        (
            ["a.gguf", "b.gguf"],
            None,
            r"several GGUF files; write 'org/name:NAME' with one of a\.gguf, b\.gguf",
        ),
        (["a.gguf", "b.gguf"], "c", r"no GGUF file that matches 'c'; .* one of a\.gguf, b\.gguf"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf", "c.gguf"], "Q4_0", r"with one of a-Q4_0\.gguf, b-Q4_0\.gguf$"),
    ],
)
def test_choice_of_files_that_is_no_choice(files, hint, message):
    with pytest.raises(ModelNotFound, match=message):
        choose_files("org/name", files, hint)
