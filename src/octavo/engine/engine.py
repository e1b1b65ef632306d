"""One request's way: checked, queued, advanced step by step, turned into text."""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from octavo.core.errors import EngineFailed, InvalidRequest, shown
from octavo.core.request import Request
from octavo.core.sampling import SamplingParams
from octavo.engine.choice import Choice, Detokenizer
from octavo.engine.generation import Generation
from octavo.engine.memory import MemoryReport
from octavo.engine.runner import Runner
from octavo.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request is checked against.

    Attributes:
        context_len: longest sequence in tokens, prompt and output together.
        context_reason: what sets that limit, for error messages.
        eos_token_ids: tokens with which the model ends its answer.
    """

    vocab_size: int
    context_len: int
    context_reason: str
    eos_token_ids: tuple[int, ...] = ()


class Engine:
    """Requests in, steps, outputs. Threads take turns: a step advances the requests of all of them."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        limits: ModelLimits,
        make_detokenizer: Callable[[SamplingParams], Detokenizer],
    ) -> None:
        self.limits = limits
        self.scheduler = scheduler
        self.runner = runner
        self._make_detokenizer = make_detokenizer
        self._live: dict[Request, tuple[Generation, Choice]] = {}
        self._num_submitted = 0
        self._failure: BaseException | None = None
        self._lock = threading.RLock()  # held by whoever changes requests, for a step at most
        self._dropped: deque[Generation] = deque()

    def prepare(
        self,
        token_ids: Sequence[int],
        params: SamplingParams,
        *,
        prompt: str | None = None,
        salt: str = "",
        priority: int = 0,
    ) -> Generation:
        """Check a request and make it ready for ``submit``, which only a full pool or queue can then refuse.

        Args:
            prompt: the text that the tokens are of, if there is one; for the output.
            salt: requests of different salts share nothing of the KV cache.
            priority: lower is more urgent, where the scheduler's policy is "priority".

        Raises:
            InvalidRequest: it can never be served; names the value and the limit.
        """
        limits = self.limits
        if not token_ids:
            raise InvalidRequest("the prompt is empty: give at least one token", param="prompt")
        for name, ids in (("prompt", token_ids), *params.token_ids_by_name().items()):
            if min(ids, default=0) < 0 or max(ids, default=0) >= limits.vocab_size:
                bad = next(t for t in ids if not 0 <= t < limits.vocab_size)
                raise InvalidRequest(
                    f"{name}: token id {shown(bad)} is outside the vocabulary, 0 to {limits.vocab_size - 1}",
                    param=name,
                )
        num_prompt = len(token_ids)
        if num_prompt >= limits.context_len:
            raise InvalidRequest(
                f"the prompt has {num_prompt} tokens; at most {limits.context_len - 1} leave room for one "
                f"new token in a context of {limits.context_len} ({limits.context_reason})",
                param="prompt",
            )
        max_len = limits.context_len
        if params.max_tokens is not None:
            max_len = min(max_len, num_prompt + params.max_tokens)
        eos = () if params.ignore_eos else limits.eos_token_ids
        with self._lock:
            first_id = self._num_submitted
            self._num_submitted += params.num_samples
        seed = secrets.randbits(64) if params.seed is None else params.seed
        requests = [
            Request(
                request_id=first_id + index,
                token_ids=list(token_ids),
                prompt_len=num_prompt,
                params=params if index == 0 else replace(params, prompt_logprobs=None),
                max_len=max_len,
                seed=seed,
                sample_index=index,
                stop_ids=frozenset((*eos, *(params.stop_token_ids or ()))),
                salt=salt,
                priority=priority,
            )
            for index in range(params.num_samples)
        ]
        requests[0].forks = requests[1:]
        choices = [Choice(request, self._make_detokenizer(params)) for request in requests]
        return Generation(choices, prompt=prompt, arrival_s=time.monotonic())

    def submit(self, generation: Generation) -> None:
        """Queue a prepared request.

        Raises:
            InvalidRequest: the KV pool could not hold it even alone.
            QueueFull: too many requests wait.
            EngineFailed: an earlier step broke.
        """
        with self._lock:
            self._check_alive()
            self._abort_dropped()
            self.scheduler.add(generation.request)
            for choice in generation.choices:
                self._live[choice.request] = generation, choice

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        with self._lock:
            self._abort_dropped()
            return bool(self._live)

    def step(self) -> int:
        """Run one step; returns the tokens it computed.

        Raises:
            EngineFailed: the step broke; every unfinished request ends with reason "error" and the engine
                stays down.
        """
        with self._lock:
            self._check_alive()
            self._abort_dropped()
            try:
                plan = self.scheduler.schedule()
                advanced = self.scheduler.commit(self.runner.run(plan))
            except BaseException as error:
                self._fail_all(error)
                if not isinstance(error, Exception):
                    raise
                raise EngineFailed(f"the engine failed in a step: {error!r}") from error
            now = time.monotonic()
            for request in advanced:
                self._take_in(*self._live[request], now)
            return plan.num_tokens

    def abort(self, generation: Generation) -> None:
        """End a request now; what it has so far is its output. Nothing happens if it is finished."""
        with self._lock:
            for choice in reversed(generation.choices):  # forks before the one that they wait for
                if choice.request in self._live:
                    self.scheduler.finish(choice.request, "abort")
                    self._close(generation, choice, time.monotonic())

    def drop(self, generation: Generation) -> None:
        """Abort a request before anything else happens; safe in a finalizer, which may run inside a step."""
        if not generation.finished:
            self._dropped.append(generation)

    def memory(self) -> MemoryReport:
        """What the KV pool is used for now."""
        with self._lock:
            self._abort_dropped()
            return MemoryReport(self.scheduler.kv.stats(), self.scheduler.held_blocks())

    def check_invariants(self) -> None:
        """Raise if the KV bookkeeping is inconsistent, or if blocks are held though no request is left."""
        with self._lock:
            if self._failure is None:
                self.scheduler.check_invariants()

    def _abort_dropped(self) -> None:
        while self._dropped:
            self.abort(self._dropped.popleft())

    def _take_in(self, generation: Generation, choice: Choice, now_s: float) -> None:
        request = choice.request
        try:
            if generation.advance(choice, now_s) and request.finish_reason is None:
                self.scheduler.finish(request, "stop")
        except Exception as error:  # a fault in one request's text is that request's alone
            if request.finish_reason is None:
                self.scheduler.finish(request, "error")
            self._blame(request, error)
        if request.finish_reason is not None:
            self._close(generation, choice, now_s)
        elif generation.on_change is not None:
            generation.on_change()

    def _close(self, generation: Generation, choice: Choice, now_s: float) -> None:
        del self._live[choice.request]
        try:
            generation.finish(choice, now_s)
        except Exception as error:
            self._blame(choice.request, error)
            choice.finished = True
        if generation.on_change is not None:
            generation.on_change()

    @staticmethod
    def _blame(request: Request, error: Exception) -> None:
        request.finish_reason = "error"
        request.error = f"its tokens could not be turned into text: {error!r}"

    def _fail_all(self, error: BaseException) -> None:
        self._failure = error
        for generation, choice in list(self._live.values()):
            choice.request.finish_reason = "error"
            choice.request.error = f"the engine failed: {error!r}"
            self._close(generation, choice, time.monotonic())

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineFailed(
                f"the engine is down since a step failed: {self._failure!r}"
            ) from self._failure
