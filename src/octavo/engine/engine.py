"""One request's way: checked, queued, advanced step by step, turned into text."""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from octavo.core.errors import EngineFailed, InvalidRequest, shown
from octavo.core.request import FinishReason, Request
from octavo.core.sampling import SamplingParams
from octavo.core.structured import StructuredOutput
from octavo.engine.beam import BeamParams, BeamSearch
from octavo.engine.beam_generation import BeamGeneration
from octavo.engine.choice import Choice, Detokenizer
from octavo.engine.generation import Generation
from octavo.engine.grammar import GrammarCompiler, GrammarMatcher
from octavo.engine.memory import MemoryReport
from octavo.engine.observing import EngineObserver, StepReport
from octavo.engine.runner import Runner
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.step import StepPlan


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
    """Requests in, steps, outputs. Threads take turns: a step advances the requests of all of them.

    Attributes:
        observer: told of every step and of requests that come and go, or None.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        limits: ModelLimits,
        make_detokenizer: Callable[[SamplingParams], Detokenizer],
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.limits = limits
        self.scheduler = scheduler
        self.runner = runner
        self.observer: EngineObserver | None = None
        self._make_detokenizer = make_detokenizer
        self._grammars = grammars
        self._live: dict[Request, Generation] = {}
        self._ids = count()
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
        try:
            salt.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"cache_salt={shown(salt)}: {error.reason}", param="cache_salt") from error
        if not token_ids:
            raise InvalidRequest("the prompt is empty: give at least one token", param="prompt")
        for name, ids in (("prompt", token_ids), *params.token_ids_by_name().items()):
            if min(ids, default=0) < 0 or max(ids, default=0) >= limits.vocab_size:
                bad = next((t for t in ids if not 0 <= t < limits.vocab_size), ids[0])
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
        if params.structured_outputs is not None and params.ignore_eos:
            # A grammar says that an output is complete by allowing nothing but these.
            params = replace(params, ignore_eos=False)
        eos = () if params.ignore_eos else limits.eos_token_ids
        first = Request(
            request_id=self._next_id(),
            token_ids=list(token_ids),
            prompt_len=num_prompt,
            params=params,
            max_len=max_len,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            stop_ids=frozenset((*eos, *(params.stop_token_ids or ()))),
            salt=salt,
            priority=priority,
            grammar=self._compiled(params),
        )
        arrival_s = time.monotonic()
        if params.use_beam_search:
            return self._prepare_beams(first, prompt, arrival_s)
        # The prompt is scored once.
        sibling = replace(params, prompt_logprobs=None) if params.prompt_logprobs is not None else params
        first.forks = [
            replace(
                first,
                request_id=self._next_id(),
                token_ids=list(token_ids),
                params=sibling,
                sample_index=index,
                forks=[],
                logprobs=[],
                prompt_logprobs=[],
                grammar=None if first.grammar is None else first.grammar.fork(),
            )
            for index in range(1, params.num_samples)
        ]
        choices = [self._make_choice(request) for request in (first, *first.forks)]
        return Generation(choices, prompt=prompt, arrival_s=arrival_s)

    def submit(self, generation: Generation) -> None:
        """Queue a prepared request.

        Raises:
            InvalidRequest: the KV pool could not hold it even alone.
            QueueFull: too many sequences wait.
            EngineFailed: an earlier step broke.
        """
        with self._lock:
            self._check_alive()
            self._abort_dropped()
            if generation.is_dropped:  # by someone who went away before the engine looked at it
                generation.end_unstarted(time.monotonic())
                generation.notify(is_over=True)
                return
            self.scheduler.add(generation.request)
            for request in generation.requests:
                self._live[request] = generation
            self._tell(lambda observer: observer.arrived(generation))

    @property
    def failure(self) -> BaseException | None:
        """What broke a step, or None."""
        return self._failure

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
            if self._dropped:
                self._abort_dropped()
            started_s = time.monotonic()
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
                generation = self._live.get(request)
                if generation is None:  # a beam that was dropped meanwhile
                    continue
                if isinstance(generation, BeamGeneration):
                    try:
                        self._advance_beams(generation, request, now)
                    except Exception as error:  # a fault in one search is that search's alone
                        generation.request.error = _textless(error)
                        self._end_search(generation, "error", now)
                else:
                    self._take_in(generation, request, now)
            if self.observer is not None:
                report = self._report(plan, advanced, started_s, now)
                self._tell(lambda observer: observer.stepped(report))
            return plan.num_tokens

    def abort(self, generation: Generation) -> None:
        """End a request now; what it has so far is its output. Nothing happens if it is finished."""
        with self._lock:
            if isinstance(generation, BeamGeneration):
                if generation in self._live.values():
                    self._end_search(generation, "abort", time.monotonic())
                return
            for request in reversed(generation.requests):  # forks before the one that they wait for
                if request in self._live:
                    self.scheduler.finish(request, "abort")
                    self._close(generation, request, time.monotonic())

    def abort_all(self) -> None:
        """End every request now."""
        with self._lock:
            for generation in list(self._live.values()):
                self.abort(generation)

    def drop(self, generation: Generation) -> None:
        """Abort a request before anything else happens; safe in a finalizer, which may run inside a step."""
        if not generation.finished:
            generation.is_dropped = True
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

    # One sequence of samples

    def _take_in(self, generation: Generation, request: Request, now_s: float) -> None:
        try:
            if generation.advance(request, now_s) and request.finish_reason is None:
                self.scheduler.finish(request, "stop")
        except Exception as error:  # a fault in one request's text is that request's alone
            if request.finish_reason is None:
                self.scheduler.finish(request, "error")
            self._blame(request, error)
        if request.finish_reason is not None:
            self._close(generation, request, now_s)
        elif generation.on_change is not None:
            generation.notify()

    def _close(self, generation: Generation, request: Request, now_s: float) -> None:
        del self._live[request]
        try:
            generation.finish(request, now_s)
        except Exception as error:
            self._blame(request, error)
            generation.choice_of(request).finished = True
        self._announce(generation)

    def _announce(self, generation: Generation) -> None:
        is_over = generation.finished
        if is_over:
            self._tell(lambda observer: observer.finished(generation))
        generation.notify(is_over=is_over)

    @staticmethod
    def _blame(request: Request, error: Exception) -> None:
        request.finish_reason = "error"
        request.error = _textless(error)

    # Beams

    def _prepare_beams(self, first: Request, prompt: str | None, arrival_s: float) -> BeamGeneration:
        params = first.params
        search = BeamSearch(
            BeamParams(
                width=params.num_samples,
                length_penalty=params.length_penalty,
                early_stopping=params.early_stopping,
            ),
            stop_ids=first.stop_ids,
            max_tokens=first.max_len - first.prompt_len,
        )
        first.params = replace(params, temperature=0.0)  # nothing is drawn
        first.beam_width = params.num_samples
        first.num_candidates = min(search.num_candidates, self.limits.vocab_size)
        return BeamGeneration(first, search, self._make_choice, prompt=prompt, arrival_s=arrival_s)

    def _advance_beams(self, generation: BeamGeneration, request: Request, now_s: float) -> None:
        """Let the search go on once the last of its beams has its candidates."""
        if request.error is not None:  # perhaps not the only beam with one
            generation.request.error = request.error
            self._end_search(generation, "error", now_s)
            return
        if not generation.is_ready:
            return
        step = generation.advance_search(now_s)
        if step.is_done:
            self._end_search(generation, "stop", now_s)
            return
        old = generation.beams
        for index, beam in enumerate(old):
            if index not in step.parents:
                self._drop_beam(beam)
        generation.beams = []
        extended: list[tuple[Request, int]] = []
        for parent, token_id in zip(step.parents, step.token_ids, strict=True):
            beam = old[parent]
            if all(beam is not other for other, _ in extended):
                extended.append((beam, token_id))  # goes on as it is, after its forks
                generation.beams.append(beam)
            else:
                generation.beams.append(self._fork_beam(beam, token_id, generation))
        for beam, token_id in extended:
            self.scheduler.extend(beam, token_id)

    def _fork_beam(self, beam: Request, token_id: int, generation: BeamGeneration) -> Request:
        request_id = self._next_id()
        child = replace(
            beam,
            request_id=request_id,
            token_ids=[*beam.token_ids, token_id],
            turn=beam.turn._replace(part=request_id),
            forks=[],
            logprobs=[],
        )
        self._live[child] = generation
        self.scheduler.fork(beam, child)
        return child

    def _drop_beam(self, beam: Request) -> None:
        del self._live[beam]
        if beam.finish_reason is None:  # or the scheduler has let it go
            self.scheduler.finish(beam, "abort")

    def _end_search(self, generation: BeamGeneration, reason: FinishReason, now_s: float) -> None:
        # Not generation.beams: a fault may have come while they were being replaced.
        for beam in [request for request, owner in self._live.items() if owner is generation]:
            self._drop_beam(beam)
        generation.request.finish_reason = reason
        self._complete_search(generation, now_s)

    def _complete_search(self, generation: BeamGeneration, now_s: float) -> None:
        try:
            generation.finish_search(now_s)
        except Exception as error:
            self._blame(generation.request, error)
            generation.give_up(now_s)
        self._announce(generation)

    # Observing

    def _tell(self, what: Callable[[EngineObserver], None]) -> None:
        if self.observer is not None:
            try:
                what(self.observer)
            except Exception:
                self.observer = None
                logging.getLogger(__name__).exception(
                    "an observer of the engine failed; it is not called again"
                )

    def _report(
        self, plan: StepPlan, advanced: list[Request], started_s: float, finished_s: float
    ) -> StepReport:
        num_drafts = num_prompt_tokens = 0
        if not plan.is_plain:
            num_drafts = sum(work.num_drafts for work in plan.work)
            num_new = sum(work.sample and len(work.token_ids) - work.num_drafts == 1 for work in plan.work)
            num_prompt_tokens = plan.num_tokens - num_drafts - num_new
        return StepReport(
            started_s=started_s,
            finished_s=finished_s,
            num_rows=len(plan.work),
            num_tokens=plan.num_tokens,
            num_prompt_tokens=num_prompt_tokens,
            num_drafts=num_drafts,
            admitted=self.scheduler.admitted,
            advanced=advanced,
        )

    # Failing

    def _fail_all(self, error: BaseException) -> None:
        self._failure = error
        for request, generation in list(self._live.items()):
            request.finish_reason = "error"
            request.error = f"the engine failed: {error!r}"
            if not isinstance(generation, BeamGeneration):
                self._close(generation, request, time.monotonic())
            elif not generation.finished:
                generation.request.finish_reason, generation.request.error = "error", request.error
                self._complete_search(generation, time.monotonic())
        self._live.clear()

    def _next_id(self) -> int:
        return next(self._ids)  # without the lock, which a step holds for its whole time

    def _make_choice(self, request: Request) -> Choice:
        return Choice(request, self._make_detokenizer(request.params))

    def _compiled(self, params: SamplingParams) -> GrammarMatcher | None:
        if not isinstance(params.structured_outputs, StructuredOutput):
            return None
        if self._grammars is None:
            raise InvalidRequest("this model has no tokenizer for grammars", param="structured_outputs")
        return self._grammars.compile(params.structured_outputs).result()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise EngineFailed(
                f"the engine is down since a step failed: {self._failure!r}"
            ) from self._failure


def _textless(error: Exception) -> str:
    return f"its tokens could not be turned into text: {error!r}"
