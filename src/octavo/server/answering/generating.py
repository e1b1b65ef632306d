"""From an HTTP request to running generations, and their end when the client goes away."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from octavo.core.errors import InvalidRequest, OctavoError, RequestFailed, shown
from octavo.core.request import RequestOutput
from octavo.core.sampling import SamplingParams
from octavo.engine.async_engine import AsyncStream, Delta
from octavo.engine.prompts import Prompt
from octavo.server.answering.chat_format import check_text_len
from octavo.server.errors import ApiError
from octavo.server.registry import ServedRequest
from octavo.server.state import ServerState

Result = TypeVar("Result")

_log = logging.getLogger("octavo.server")


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True)
class Caller:
    """What a request says of itself.

    Attributes:
        response_id: what its answer is called.
        user: who it is for, or None.
        headers: of the HTTP request, names in lower case; a trace that it belongs to is told there.
    """

    response_id: str
    endpoint: str
    user: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Running:
    """The generations of one HTTP request, one for each prompt. Close it whatever happens."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._streams: list[AsyncStream] = []
        self._served: list[ServedRequest] = []
        self._headers: Mapping[str, str] = {}

    async def start(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        caller: Caller,
        *,
        cache_salt: str,
        priority: int,
    ) -> None:
        """Submit all prompts, or none.

        Raises:
            InvalidRequest, QueueFull, EngineDraining, EngineFailed: see ``AsyncEngine.stream``.
        """
        self._headers = caller.headers
        self._check(prompts, params, priority)
        try:
            for prompt in prompts:
                stream = await self._state.engine.stream(
                    prompt, params, cache_salt=cache_salt, priority=priority
                )
                self._streams.append(stream)
                self._remember(stream, caller)
        except BaseException:
            self.close()
            raise

    def _check(self, prompts: Sequence[Prompt], params: SamplingParams, priority: int) -> None:
        """Refuse what can never be served, or would be ignored."""
        config = self._state.llm.config
        for prompt in prompts:
            if isinstance(prompt, str):
                check_text_len(self._state.llm, prompt, param="prompt")
        if priority and config.scheduling != "priority":
            raise InvalidRequest(
                f"priority={priority}: this server serves who comes first (--scheduling fcfs)",
                param="priority",
            )
        num_sequences = len(prompts) * params.num_samples
        if config.max_waiting is not None and len(prompts) > 1:
            limit = config.max_waiting + config.max_num_seqs
            if num_sequences > limit:
                raise InvalidRequest(
                    f"prompt: {len(prompts)} prompts with {params.num_samples} continuations each are "
                    f"{num_sequences} sequences; this server holds {limit} at once",
                    param="prompt",
                )

    def _remember(self, stream: AsyncStream, caller: Caller) -> None:
        generation = stream.generation
        served = ServedRequest(
            caller.response_id,
            caller.endpoint,
            caller.user,
            tuple(request.request_id for request in generation.requests),
        )
        self._served.append(served)
        self._state.registry.add(served)
        if self._state.settings.log_prompts:
            prompt = self._state.llm.tokenizer.decode(self.prompt_token_ids(-1), skip_special=False)
            _log.info("%s prompt: %r", caller.response_id, prompt)

    def prompt_token_ids(self, index: int) -> list[int]:
        """Of prompt number ``index``."""
        request = self._streams[index].generation.request
        return request.token_ids[: request.prompt_len]

    def prompt_logprobs(self, index: int) -> list[Any]:
        """Of prompt number ``index``, for each token but the first; complete once it has an output token."""
        return self._streams[index].generation.request.prompt_logprobs

    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the cache, over all prompts."""
        return sum(stream.generation.request.num_cached_tokens for stream in self._streams)

    def num_prompt_tokens(self) -> int:
        """Over all prompts."""
        return sum(stream.generation.request.prompt_len for stream in self._streams)

    def num_output_tokens(self) -> int:
        """Generated for all prompts: what ``best_of`` left out counts, it has been computed."""
        return sum(stream.generation.num_output_tokens for stream in self._streams)

    async def results(self) -> list[RequestOutput]:
        """All outputs, in the order of the prompts.

        Raises:
            ApiError: one of them failed, or was broken off because the server stops.
        """
        outputs = [await stream.result() for stream in self._streams]
        for output in outputs:
            if output.error is not None:
                raise RequestFailed(output.error)
            check_not_broken_off(output.outputs[0].finish_reason)
        return outputs

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """What is new, with the number of its prompt, as it comes.

        Raises:
            OctavoError: a request failed, or was broken off because the server stops.
        """
        if len(self._streams) == 1:
            async for delta in self._streams[0]:
                check_not_broken_off(delta.finish_reason)
                yield 0, delta
            return
        queue: asyncio.Queue[tuple[int, Delta | Exception | None]] = asyncio.Queue()

        async def pump(index: int, stream: AsyncStream) -> None:
            try:
                async for delta in stream:
                    queue.put_nowait((index, delta))
                queue.put_nowait((index, None))
            except OctavoError as error:
                queue.put_nowait((index, error))

        tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(self._streams)]
        try:
            num_open = len(tasks)
            while num_open:
                index, new = await queue.get()
                if new is None:
                    num_open -= 1
                elif isinstance(new, Exception):
                    raise new
                else:
                    check_not_broken_off(new.finish_reason)
                    yield index, new
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        """End what still runs; its blocks are free before the engine's next step."""
        for stream in self._streams:
            stream.close()
        for stream, served in zip(self._streams, self._served, strict=False):
            if self._state.tracing is not None:
                self._state.tracing.record(
                    stream.generation,
                    headers=self._headers,
                    endpoint=served.endpoint,
                    response_id=served.response_id,
                )
            if self._state.settings.log_prompts:
                texts = [choice.text for choice in stream.generation.choices]
                _log.info("%s output: %r", served.response_id, texts)
        self._served.clear()


def check_not_broken_off(finish_reason: str | None) -> None:
    """Raise if it was the server that ended a request."""
    if finish_reason == "abort":
        raise ApiError(503, "the server stopped before the answer was complete", code="draining")


def check_model(state: ServerState, model: str | None) -> None:
    """Raise if a client asks for another model than the one that is served."""
    name = state.settings.model_name
    if model is not None and model != name:
        raise ApiError(
            404,
            f"model={shown(model)}: there is no such model; this server has {name!r}",
            param="model",
            code="model_not_found",
        )


def check_num_prompts(state: ServerState, num_prompts: int) -> None:
    """Raise if one request brings too many."""
    if num_prompts > state.settings.max_prompts:
        raise InvalidRequest(
            f"prompt: {num_prompts} prompts, at most {state.settings.max_prompts} in one request",
            param="prompt",
        )


async def until_left(receive: Receive) -> None:
    """Return when the client has gone away. The body has been received before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(request: Request, work: Awaitable[Result]) -> Result:
    """The result of ``work``, which is cancelled if the client goes away.

    Raises:
        ClientLeft: it did.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(until_left(request.receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeft
    finally:
        for one in (task, watcher):
            one.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)
