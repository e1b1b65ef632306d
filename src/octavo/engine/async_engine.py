"""The engine for asyncio: one thread steps it, any number of tasks submit, stream and abort.

Nothing here waits for a step in an event loop: what tasks want is left where the engine's thread finds it
between two steps, and the thread calls back.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, TypeVar, cast

from octavo.core.errors import EngineFailed, OctavoError, RequestFailed
from octavo.core.request import RequestOutput, TokenLogprobs
from octavo.core.sampling import SamplingParams
from octavo.engine.engine import Engine
from octavo.engine.generation import Generation
from octavo.engine.llm import LLM, Message
from octavo.engine.prompts import Prompt

Found = TypeVar("Found")

_SHORT_LEN: Final = 4096  # characters, or tokens


class EngineDraining(OctavoError):
    """The engine finishes what it has and takes nothing new."""


@dataclass(slots=True)  # frozen, it would take three times as long to make, for every token
class Delta:
    """What is new of one choice.

    Attributes:
        index: of the choice.
        text: certain text; tokens may come before their text does.
        finish_reason: set in the last delta of the choice.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str | None


@dataclass(slots=True)
class _Submission:
    """A request on its way to the engine's thread; ``done`` is told what came of it."""

    generation: Generation
    done: Callable[[Exception | None], None]


@dataclass(slots=True)
class _Inbox:
    """What the engine's thread looks at between two steps."""

    condition: threading.Condition = field(default_factory=threading.Condition)
    submissions: deque[_Submission] = field(default_factory=deque)
    calls: deque[Callable[[], None]] = field(default_factory=deque)
    is_draining: bool = False
    is_closing: bool = False


class _News:
    """What a stream has been told, in its event loop.

    Attributes:
        changed: set when there is something new.
        is_over: nothing more will come, and those who observe the engine know it.
    """

    __slots__ = ("changed", "is_over")

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.is_over = False

    def tell(self, is_over: bool) -> None:
        self.is_over |= is_over
        self.changed.set()


class _Waker:
    """Wakes tasks once per step and not once per stream: a loop's attention is the costly part."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.AbstractEventLoop, list[tuple[_News, bool]]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, news: _News, is_over: bool) -> None:
        """In the engine's thread: tell it at the next ``wake``."""
        self._waiting.setdefault(loop, []).append((news, is_over))

    def wake(self) -> None:
        """In the engine's thread."""
        waiting, self._waiting = self._waiting, {}
        for loop, told in waiting.items():
            with contextlib.suppress(RuntimeError):  # closed; whoever ran there is gone
                loop.call_soon_threadsafe(_tell_all, told)


def _tell_all(told: list[tuple[_News, bool]]) -> None:
    for news, is_over in told:
        news.tell(is_over)


class AsyncStream:
    """One request's deltas, as they come. Closing it early, or breaking off ``async for``, ends the request.

    Raises:
        OctavoError: while iterating, if the request fails; ``output`` then holds what there is.
    """

    def __init__(self, engine: "AsyncEngine", generation: Generation) -> None:
        self._engine = engine
        self.generation = generation
        self._news = _News()
        self._num_told = [0] * len(generation.choices)
        self._has_ended = [False] * len(generation.choices)
        loop, news, waker = asyncio.get_running_loop(), self._news, engine._waker

        def wake(is_over: bool) -> None:  # holds no reference to the stream: who loses it ends the request
            waker.add(loop, news, is_over)

        generation.on_change = wake

    async def __aiter__(self) -> AsyncIterator[Delta]:
        news = self._news
        try:
            while True:
                news.changed.clear()
                is_over = news.is_over  # asked first: everything has come then
                for delta in self._new():
                    yield delta
                if is_over:
                    break
                await news.changed.wait()
        finally:
            self.close()
        if (error := self.generation.output().error) is not None:
            raise RequestFailed(error)

    async def result(self) -> RequestOutput:
        """The whole output, when it is complete; what failed has its ``error``."""
        try:
            while not self._news.is_over:
                await self._news.changed.wait()
                self._news.changed.clear()
            return self.generation.output()
        finally:
            self.close()

    @property
    def output(self) -> RequestOutput:
        """The whole result, once the stream is exhausted or closed and the engine has noticed."""
        return self.generation.output()

    def close(self) -> None:
        """End the request if it is still running; its blocks are free before the next step."""
        self._engine.abort(self)

    def __del__(self) -> None:
        self.close()

    def _new(self) -> list[Delta]:
        deltas = []
        for index, choice in enumerate(self.generation.choices):
            if index >= len(self._has_ended):  # beams are choices only in the end
                self._num_told.append(0)
                self._has_ended.append(False)
            if self._has_ended[index]:
                continue
            finished = choice.finished  # asked first
            first, end = self._num_told[index], choice.num_tokens
            text = choice.take_text()
            if end == first and not text and not finished:
                continue
            self._num_told[index] = end
            self._has_ended[index] = finished
            request, start = choice.request, choice.request.prompt_len
            deltas.append(
                Delta(
                    index,
                    text,
                    request.token_ids[start + first : start + end],
                    request.logprobs[first:end],
                    request.finish_reason if finished else None,
                )
            )
        return deltas


class AsyncEngine:
    """Serves an ``LLM`` to asyncio tasks; nobody else may step that LLM meanwhile.

    Args:
        llm: stays open when this is closed.

    ``async with AsyncEngine(llm) as engine`` starts the thread and stops it in the end.
    """

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._engine: Engine = llm.engine
        self._inbox = _Inbox()
        self._waker = _Waker()
        self._step_began_s: float | None = None
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()
        self._idle.set()

    async def __aenter__(self) -> "AsyncEngine":
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown(drain=error is None)

    @property
    def step_s(self) -> float:
        """Seconds that the step now running has taken so far; 0 between steps."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    @property
    def failure(self) -> BaseException | None:
        """What broke the engine, or None; it takes no more work then."""
        return self._engine.failure

    def start(self) -> None:
        """Start the engine's thread; once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
            self._thread.start()

    async def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        priority: int = 0,
    ) -> AsyncStream:
        """Continue a prompt; the stream's first delta comes with the first token.

        Raises:
            InvalidRequest: it can never be served; names the value and the limit.
            QueueFull: too many sequences wait.
            EngineDraining: the engine takes nothing new.
            EngineFailed: a step broke.
        """
        params = sampling_params or SamplingParams()
        # Tokenizing a long prompt or compiling a grammar takes its time: not in the event loop. For others
        # a thread would take more.
        if len(prompt) <= _SHORT_LEN and params.structured_outputs is None:
            generation = self.llm.prepare(prompt, params, cache_salt=cache_salt, priority=priority)
        else:
            generation = await asyncio.to_thread(
                self.llm.prepare, prompt, params, cache_salt=cache_salt, priority=priority
            )
        loop = asyncio.get_running_loop()
        accepted: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if accepted.done():
                return
            if error is None:
                accepted.set_result(None)
            else:
                accepted.set_exception(error)

        def done(error: Exception | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, error)

        stream = AsyncStream(self, generation)
        with self._inbox.condition:
            if self._inbox.is_draining or self._thread is None:
                raise EngineDraining("the engine is shutting down, or was not started")
            self._idle.clear()
            self._inbox.submissions.append(_Submission(generation, done))
            self._inbox.condition.notify()
        try:
            await accepted
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream

    async def chat(
        self, messages: list[Message], sampling_params: SamplingParams | None = None, **options: object
    ) -> AsyncStream:
        """Answer a conversation: ``stream`` on the model's chat template."""
        prompt = await asyncio.to_thread(self.llm.encode_chat, messages)
        return await self.stream(prompt, sampling_params, **options)  # type: ignore[arg-type]

    async def generate(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None, **options: object
    ) -> RequestOutput:
        """Continue a prompt and wait for the whole output."""
        stream = await self.stream(prompt, sampling_params, **options)  # type: ignore[arg-type]
        return await stream.result()

    def abort(self, stream: AsyncStream) -> None:
        """End a request before the next step. Nothing happens if it is finished. Any thread may call it."""
        if not stream.generation.finished:
            self._engine.drop(stream.generation)
            with self._inbox.condition:
                self._inbox.condition.notify()

    async def inspect(self, look: Callable[[Engine], Found]) -> Found:
        """What ``look`` finds between two steps, in the engine's thread, which it keeps from the next step.

        Raises:
            EngineDraining: the engine's thread does not run.
            Whatever ``look`` raises.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Found] = loop.create_future()

        def settle(result: Found | None, error: Exception | None) -> None:
            if found.done():
                return
            if error is not None:
                found.set_exception(error)
            else:
                found.set_result(cast(Found, result))

        def call() -> None:
            result, error = None, None
            try:
                result = look(self._engine)
            except Exception as problem:
                error = problem
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, result, error)

        with self._inbox.condition:
            if self._thread is None or self._inbox.is_closing:
                raise EngineDraining("the engine is shutting down, or was not started")
            self._inbox.calls.append(call)
            self._inbox.condition.notify()
        return await found

    async def drain(self) -> None:
        """Take nothing new, and wait until all that was taken is finished."""
        with self._inbox.condition:
            self._inbox.is_draining = True
            self._inbox.condition.notify()
        await asyncio.to_thread(self._idle.wait)

    async def shutdown(self, *, drain: bool = True) -> None:
        """Stop the thread, after finishing all requests or with them aborted; streams end either way."""
        if drain:
            await self.drain()
        with self._inbox.condition:
            self._inbox.is_draining = self._inbox.is_closing = True
            self._inbox.condition.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    # The engine's thread

    def _run(self) -> None:
        engine, inbox = self._engine, self._inbox
        while True:
            with inbox.condition:
                while not (inbox.submissions or inbox.calls or inbox.is_closing or engine.has_work):
                    self._waker.wake()  # who was dropped just now
                    self._idle.set()
                    inbox.condition.wait()
                submissions, calls = list(inbox.submissions), list(inbox.calls)
                inbox.submissions.clear()
                inbox.calls.clear()
                is_closing = inbox.is_closing
            for submission in submissions:
                self._take(submission)
            for call in calls:
                call()
            if is_closing:
                engine.abort_all()
                self._waker.wake()
                self._idle.set()
                return
            self._waker.wake()  # those that ended between two steps
            try:
                if engine.has_work:
                    self._step_began_s = time.monotonic()
                    engine.step()
            except EngineFailed:
                pass  # every request was told; those to come will be
            finally:
                self._step_began_s = None
            self._waker.wake()

    def _take(self, submission: _Submission) -> None:
        try:
            self._engine.submit(submission.generation)
        except Exception as error:
            submission.done(error)
        else:
            submission.done(None)
