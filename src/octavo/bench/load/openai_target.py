"""A server that speaks OpenAI's API, streaming."""

import asyncio
import json
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.load import advice
from octavo.bench.load.answers import StreamedAnswer, error_text
from octavo.bench.load.exchange import (
    BAD_ANSWER,
    BROKEN,
    CONNECT,
    LOST,
    NO_OUTPUT,
    TIMEOUT,
    UNSUITED,
    Exchange,
)
from octavo.bench.load.http import Address, Disconnected, HttpClient, OnBody, Response
from octavo.bench.load.rss import peak_rss_bytes
from octavo.bench.load.target import MemoryFacts
from octavo.bench.workloads.item import Prompt, prompt_as_json
from octavo.core.errors import InvalidConfig, OctavoError, shown

_MOST_ERROR_BYTES = 1 << 16
_REFUSALS = (400, 422)
_NO_LIST = (404, 405, 501)
_MOST_WAIT_S = 30.0  # for anything but a completion


class _Unsuited(OctavoError):
    """An answer that is not what was asked for."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How to talk to a server.

    Attributes:
        model: what it calls the model; None asks it.
        is_chat: use ``/v1/chat/completions``; prompts that are messages need it.
        ignore_eos: send ``ignore_eos``, so that every answer has the length that was asked for; None tries
            whether the server takes it.
        body: fields to add to every request.
        timeout_s: for a whole request.
        pid: of the server, if it runs on this machine.
        asks_memory: ask for ``/v1/memory``, which Octavo has.

    Raises:
        InvalidConfig: a value out of range.
    """

    model: str | None = None
    api_key: str | None = None
    is_chat: bool = False
    ignore_eos: bool | None = None
    body: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 600.0
    pid: int | None = None
    asks_memory: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            raise InvalidConfig(f"timeout={self.timeout_s:g}: must be a number of seconds above 0")


class OpenAITarget:
    """Sends requests to a server.

    Args:
        url: with or without the API's ``/v1``.
    """

    def __init__(self, url: str, options: ServerOptions) -> None:
        self.address = Address.parse(url)
        self.options = options
        self.model = options.model or ""
        self._client: HttpClient | None = None
        self._extra: dict[str, Any] = {}
        self._kind: str | None = None
        self._precision: str | None = None
        self._tells_memory = options.asks_memory

    async def open(self) -> None:
        """Ask what it serves, and try which of the fields beyond OpenAI's API it takes.

        Raises:
            OctavoError: it is not there, has no model, or refuses a small request.
        """
        headers = {"Content-Type": "application/json", "User-Agent": "octavo-bench"}
        if self.options.api_key:
            headers["Authorization"] = f"Bearer {self.options.api_key}"
        self._client = HttpClient(self.address, headers)
        models = await self._list_models()
        self.model = self.model or self._only_of(models)
        await self._probe(is_listing=bool(models))
        self._kind = await self._find_kind(models)
        self._precision = self._told_precision(models)
        self._tells_memory = self._tells_memory and await self.memory() is not None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    async def send(self, prompt: Prompt, max_tokens: int, exchange: Exchange) -> None:
        """Stream the continuation of a prompt."""
        is_chat = self.options.is_chat
        if isinstance(prompt, array if is_chat else tuple):
            needed = "token ids need completions: leave --chat out" if is_chat else "messages need --chat"
            exchange.fail(UNSUITED, needed)
            return
        told = prompt_as_json(prompt)
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "stream": True}
        if is_chat:
            body["messages"] = [{"role": "user", "content": told}] if isinstance(told, str) else told
        else:
            body["prompt"] = told
        body |= {"temperature": 0, **self._extra, **self.options.body}
        content = json.dumps(body, separators=(",", ":")).encode()
        exchange.sent_s = time.perf_counter()
        await self._stream(self._endpoint, content, exchange, is_chat=is_chat)
        exchange.closed_s = time.perf_counter()

    async def memory(self) -> MemoryFacts | None:
        """From ``/v1/memory``, if it is an Octavo server."""
        if not self._tells_memory:
            return None
        try:
            found = await self._get(f"{self.address.base}/memory")
            pool, scheduler = found["pool"], found["scheduler"]
            return MemoryFacts(
                used_blocks=int(pool["used_blocks"]),
                total_blocks=int(pool["total_blocks"]),
                block_bytes=int(pool["block_bytes"]),
                waste=float(pool["waste"]),
                peak_blocks=int(scheduler["peak_blocks"]),
                num_preemptions=int(scheduler["num_preemptions"]),
                query_tokens=int(pool["query_tokens"]),
                hit_tokens=int(pool["hit_tokens"]),
            )
        except (OctavoError, KeyError, TypeError, ValueError, OverflowError):
            return None

    def watch(self, see: Callable[[MemoryFacts], None] | None) -> bool:
        """It cannot."""
        return False

    def describe(self) -> dict[str, Any]:
        """For reports."""
        return {
            "kind": "server",
            "url": str(self.address),
            "is_local": self.address.is_local,
            "server": self._kind,
            "precision": self._precision,
            "model": self.model,
            "endpoint": "chat/completions" if self.options.is_chat else "completions",
            "ignore_eos": bool(self._extra.get("ignore_eos")),
            "asks_usage": "stream_options" in self._extra,
            "body": self.options.body,
        }

    def peak_rss_bytes(self) -> int | None:
        """Of the process whose id was given, and its children."""
        return None if self.options.pid is None else peak_rss_bytes(self.options.pid)

    @property
    def _endpoint(self) -> str:
        return f"{self.address.base}/{'chat/completions' if self.options.is_chat else 'completions'}"

    async def _stream(self, path: str, content: bytes, exchange: Exchange, *, is_chat: bool) -> None:
        assert self._client is not None
        answer = StreamedAnswer(exchange, is_chat=is_chat)
        error = bytearray()
        exchange.reader = answer.read

        def on_response(response: Response) -> OnBody:
            if _is_stream(response):
                return answer.feed
            return lambda body, _: _keep(error, body, _MOST_ERROR_BYTES)

        try:
            async with asyncio.timeout(self.options.timeout_s):
                response = await self._client.request(
                    "POST", path, content, on_response=on_response, on_resend=exchange.note_resend
                )
        except OSError as problem:
            exchange.settle()  # an error that the stream told comes first
            exchange.fail(*_why_lost(problem, self.options.timeout_s))
            return
        compressed = _compressed(response)
        if response.status != 200:
            told = compressed or _message(bytes(error)) + advice.of_answer(response)
            exchange.fail(f"http {response.status}", told)
        elif compressed:
            exchange.fail(BAD_ANSWER, compressed)
        elif _is_stream(response):
            exchange.reader, exchange.unread_bytes = answer.read_all, answer.unread_bytes
        else:
            exchange.fail(BAD_ANSWER, f"not a stream of events: {shown(bytes(error))}")

    async def _probe(self, *, is_listing: bool) -> None:
        """Find the extra fields that the server takes, with requests of one token."""
        usage = {"stream_options": {"include_usage": True}}
        ignore = {} if self.options.ignore_eos is False else {"ignore_eos": True}
        if self.options.ignore_eos:
            candidates: list[dict[str, Any]] = [{**usage, **ignore}, ignore]
        else:
            candidates = [{**usage, **ignore}, usage, ignore, {}]
        exchange = Exchange()
        for extra in candidates:
            self._extra, exchange = extra, Exchange()
            await self.send("Hello", 1, exchange)
            exchange.settle()
            if exchange.failure not in [f"http {status}" for status in _REFUSALS]:
                break
        if exchange.failure is not None and exchange.failure != NO_OUTPUT:
            url = self.address.at(self._endpoint)
            todo = ""
            if exchange.failure == "http 404" and is_listing and not self.options.is_chat:
                todo = "; it lists models, so the address is right: if it has nothing but chat, give --chat"
            raise OctavoError(f"{url} does not answer a small request: {_why(exchange)}{todo}")

    async def _list_models(self) -> list[dict[str, Any]]:
        """What it says of its models; nothing if it need not and does not."""
        try:
            found = await self._get(f"{self.address.base}/models")
        except _Unsuited as error:
            if self.model:
                return []
            if error.status not in _NO_LIST:
                raise
            todo = "if the address is right, it does not list its models: name one with --model-name"
            raise OctavoError(f"{error}; {todo}") from None
        listed = found.get("data") if isinstance(found, dict) else None
        listed = listed if isinstance(listed, list) else []
        return [each for each in listed if isinstance(each, dict)]

    def _only_of(self, models: list[dict[str, Any]]) -> str:
        names = [str(each["id"]) for each in models if "id" in each]
        if not names:
            raise OctavoError(f"{self.address} has no model; name one with --model-name")
        if len(names) > 1:
            some = ", ".join(names[:9])
            raise OctavoError(f"{self.address} has {len(names)} models; choose with --model-name: {some}")
        return names[0]

    async def _find_kind(self, models: list[dict[str, Any]]) -> str | None:
        """Name and version of the server, if it tells; for reports only."""
        owner = str(models[0].get("owned_by", "")) if models else ""
        try:
            version = str((await self._get(f"{self.address.root}/version"))["version"])
        except (OctavoError, KeyError, TypeError):
            version = ""
        return f"{owner} {version}".strip()[:100] or None

    def _told_precision(self, models: list[dict[str, Any]]) -> str | None:
        """Of the model that is asked; Octavo tells it, OpenAI's API has no such field."""
        told = next((each.get("precision") for each in models if each.get("id") == self.model), None)
        return told[:100] if isinstance(told, str) and told.isprintable() else None

    async def _get(self, path: str) -> Any:
        assert self._client is not None
        body = bytearray()
        try:
            timeout_s = min(_MOST_WAIT_S, self.options.timeout_s)
            async with asyncio.timeout(timeout_s):
                response = await self._client.request(
                    "GET", path, on_response=lambda _: lambda part, _now: _keep(body, part)
                )
        except OSError as error:
            todo = advice.of_problem(self.address, error)
            if isinstance(error, TimeoutError) and error.errno is None:  # ours, not the system's
                raise OctavoError(f"{self.address} does not answer within {timeout_s:g} s{todo}") from None
            raise OctavoError(f"cannot reach {self.address}: {error}{todo}") from error
        url = self.address.at(path)
        if compressed := _compressed(response):
            raise _Unsuited(f"{url}: {compressed}", response.status)
        if response.status != 200:
            told = f"status {response.status}: {_message(bytes(body))}{advice.of_answer(response)}"
            raise _Unsuited(f"{url}: {told}", response.status)
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise _Unsuited(f"{url} is not JSON", response.status) from None


def _compressed(response: Response) -> str | None:
    """What to say of an answer that cannot be read."""
    encoding = response.headers.get("content-encoding", "").strip()
    if encoding.lower() in ("", "identity"):
        return None
    return f"the answer is compressed ({encoding}), which was not asked for"


def _is_stream(response: Response) -> bool:
    kind = response.headers.get("content-type", "").strip().lower()
    return response.status == 200 and kind.startswith("text/event-stream") and not _compressed(response)


def _why_lost(problem: OSError, timeout_s: float) -> tuple[str, str]:
    """Reason and detail."""
    if isinstance(problem, Disconnected):
        return BROKEN if problem.began else LOST, str(problem)
    if isinstance(problem, TimeoutError) and problem.errno is None:  # ours, not the system's
        return TIMEOUT, f"after {timeout_s:g} s"
    return CONNECT, str(problem)


def _keep(kept: bytearray, body: bytes, most: int | None = None) -> bool:
    """An ``OnBody``, but for the time: such a body is complete when its message is."""
    if most is None or len(kept) < most:
        kept.extend(body)
    return False


def _message(body: bytes) -> str:
    try:
        return error_text(json.loads(body))
    except (ValueError, RecursionError):
        return body[:300].decode(errors="replace")


def _why(exchange: Exchange) -> str:
    return f"{exchange.failure}: {exchange.detail}" if exchange.detail else str(exchange.failure)
