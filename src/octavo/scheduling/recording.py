"""Every decision of a scheduler in a file, and the same decisions made again without a model.

A recording is lines of JSON: first the settings, then what happened in order. Tokens appear under numbers
given in the order of their first appearance. A recording says which of them are equal, and how their ids
compare, as some choices among equally good cached blocks depend on that; not what they are.
"""

import json
import warnings
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from octavo.core.config import Scheduling, Speculative
from octavo.core.errors import InvalidConfig, OctavoError
from octavo.core.request import FinishReason, Request
from octavo.core.sampling import SamplingParams
from octavo.paging.groups import GroupSpec
from octavo.paging.hashing import TOKEN_BYTES
from octavo.paging.manager import KVManager
from octavo.scheduling.drafting import Drafter, NGramDrafter
from octavo.scheduling.scheduler import Scheduler
from octavo.scheduling.step import StepPlan, StepResult

FORMAT_VERSION: Final = 1

Event = dict[str, Any]


class CorruptRecording(OctavoError):
    """A file that is no recording, or one that breaks off or contradicts itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """All that decides what a scheduler does with its requests, but for the requests.

    Attributes:
        num_blocks: frames of the pool, the null block included.
    """

    num_blocks: int
    groups: tuple[GroupSpec, ...]
    prefix_cache: bool
    max_num_seqs: int
    max_step_tokens: int
    max_chunk_tokens: int | None = None
    scheduling: Scheduling = "fcfs"
    max_waiting: int | None = None
    speculative: Speculative | None = None
    max_drafts: int = 8

    def build(
        self, *, namespace: str = "", record: Path | None = None, drafter: Drafter | None = None
    ) -> Scheduler:
        """A scheduler with an empty pool, which writes a recording if a path is given.

        Args:
            drafter: guesses tokens in place of what ``speculative`` names.
        """
        kv = KVManager(
            num_blocks=self.num_blocks,
            groups=self.groups,
            prefix_cache=self.prefix_cache,
            namespace=namespace,
        )
        if drafter is None and self.speculative == "ngram":
            drafter = NGramDrafter(self.max_drafts)
        options: dict[str, Any] = {
            "max_num_seqs": self.max_num_seqs,
            "max_step_tokens": self.max_step_tokens,
            "max_chunk_tokens": self.max_chunk_tokens,
            "policy": self.scheduling,
            "max_waiting": self.max_waiting,
            "drafter": drafter,
        }
        return Scheduler(kv, **options) if record is None else RecordingScheduler(kv, self, record, **options)


class RecordingScheduler(Scheduler):
    """A scheduler that writes down all it is told and all it decides.

    Raises:
        InvalidConfig: the file cannot be written.
    """

    def __init__(self, kv: KVManager, settings: SchedulerSettings, path: Path, **options: Any) -> None:
        super().__init__(kv, **options)
        try:
            self._file: TextIO = path.open("w", encoding="utf-8")
        except OSError as error:
            raise InvalidConfig(f"record={str(path)!r}: {error.strerror}") from error
        self._aliases: dict[int, int] = {}
        self._order: list[bytes] = []  # of the tokens that appeared, as the prefix index sorts them
        self._ranks: list[int] = []  # where in that order the tokens came that are new since the last line
        self._write({"octavo_recording": FORMAT_VERSION, "settings": asdict(settings)})

    def add(self, request: Request) -> None:
        """See Scheduler.add. What is refused is not recorded: nothing was decided."""
        event = {"add": self._described(request), "forks": [self._described(f) for f in request.forks]}
        super().add(request)
        self._write(event)

    def fork(self, parent: Request, child: Request) -> None:
        """See Scheduler.fork."""
        self._write({"fork": parent.request_id, "child": self._described(child)})
        super().fork(parent, child)

    def extend(self, request: Request, token_id: int) -> None:
        """See Scheduler.extend."""
        self._write({"extend": request.request_id, "token": self._alias(token_id)})
        super().extend(request, token_id)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """See Scheduler.finish."""
        self._write({"finish": request.request_id, "reason": reason})
        super().finish(request, reason)

    def schedule(self) -> StepPlan:
        """See Scheduler.schedule."""
        plan = super().schedule()
        self._write({"plan": describe(plan)})
        return plan

    def commit(self, result: StepResult) -> list[Request]:
        """See Scheduler.commit."""
        self._write(
            {
                "chosen": [self._alias(t) for t in result.token_ids],
                "failures": sorted(result.failures),
                "candidates": sorted(result.candidates),
                "scored": {i: len(entries) for i, entries in result.prompt_logprobs.items()},
            }
        )
        return super().commit(result)

    def close(self) -> None:
        """Finish the file."""
        with suppress(OSError):
            self._file.close()

    def _described(self, request: Request) -> Event:
        return {
            "id": request.request_id,
            "tokens": [self._alias(t) for t in request.token_ids],
            "prompt_len": request.prompt_len,
            "max_len": request.max_len,
            "stop_ids": sorted(self._alias(t) for t in request.stop_ids),
            "salt": request.salt,
            "priority": request.priority,
            "scored": request.params.prompt_logprobs is not None,
            "beam_width": request.beam_width,
            "num_candidates": request.num_candidates,
            "turn": list(request.turn),
            "num_preemptions": request.num_preemptions,
        }

    def _alias(self, token_id: int) -> int:
        alias = self._aliases.get(token_id)
        if alias is None:
            alias = self._aliases[token_id] = len(self._aliases)
            key = token_id.to_bytes(TOKEN_BYTES, "little", signed=token_id < 0)
            self._ranks.append(bisect_left(self._order, key))
            self._order.insert(self._ranks[-1], key)
        return alias

    def _write(self, event: Event) -> None:
        if self._ranks:
            event["ranks"] = self._ranks
            self._ranks = []
        if self._file.closed:
            return
        try:
            json.dump(event, self._file, separators=(",", ":"))
            self._file.write("\n")
        except OSError as error:  # a full disk is no reason to stop serving
            warnings.warn(f"recording ended: {error}", RuntimeWarning, stacklevel=2)
            with suppress(OSError):
                self._file.close()


def describe(plan: StepPlan) -> Event:
    """A plan as plain data: all that was decided."""
    return {
        "closed": plan.closed_rows,
        "opened": [o.row for o in plan.opened_rows],
        "updates": [list(u) for u in plan.block_updates],
        "copies": [list(c) for c in plan.copies],
        "work": [
            [w.row, w.start, len(w.token_ids), w.sample, w.num_drafts, list(w.forks), w.score]
            for w in plan.work
        ],
    }


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What came of making all decisions again.

    Attributes:
        difference: how the first decision that came out otherwise differs, or None.
    """

    num_requests: int
    num_steps: int
    num_tokens: int
    num_preemptions: int
    difference: str | None


def replay(path: Path) -> ReplayReport:
    """Make every decision of a recording again, and compare.

    Raises:
        CorruptRecording: the file is no recording, or breaks off in a line; names the line.
        OSError: it cannot be read.
    """
    tokens = _token_ids(path)
    events = _events(path)
    scheduler = _settings(next(events, (1, {}))[1]).build()
    requests: dict[int, Request] = {}
    num_steps = num_tokens = 0
    for line, event in events:
        try:
            if "plan" in event:
                num_steps += 1
                plan = scheduler.schedule()
                num_tokens += plan.num_tokens
                if difference := _difference(event["plan"], describe(plan)):
                    text = f"step {num_steps} (line {line}): {difference}"
                    return _report(scheduler, requests, num_steps, num_tokens, text)
            elif "chosen" in event:
                scheduler.commit(_result(event, tokens))
            else:
                _apply(scheduler, requests, event, tokens)
        except Exception as error:  # all that happens here follows from the file
            raise CorruptRecording(f"{path}, line {line}: {error!r}") from error
    return _report(scheduler, requests, num_steps, num_tokens, None)


def _events(path: Path) -> Iterator[tuple[int, Event]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise CorruptRecording(f"{path}, line {number}: not JSON: {error}") from error
            if not isinstance(event, dict):
                raise CorruptRecording(f"{path}, line {number}: not an object")
            yield number, event


def _settings(header: Event) -> SchedulerSettings:
    if header.get("octavo_recording") != FORMAT_VERSION:
        raise CorruptRecording(
            f"not a recording of version {FORMAT_VERSION}: {header.get('octavo_recording')!r}"
        )
    try:
        settings = dict(header["settings"])
        settings["groups"] = tuple(GroupSpec(**group) for group in settings["groups"])
        return SchedulerSettings(**settings)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecording(f"the settings in line 1: {error!r}") from error


def _token_ids(path: Path) -> list[int]:
    """By alias, ids that the prefix index sorts as it did the real ones."""
    order: list[int] = []
    for line, event in _events(path):
        ranks = event.get("ranks", [])
        for rank in ranks if isinstance(ranks, list) else [ranks]:
            if not isinstance(rank, int) or not 0 <= rank <= len(order):
                raise CorruptRecording(f"{path}, line {line}: {rank!r} is no rank among {len(order) + 1}")
            order.insert(rank, len(order))
    ids = [0] * len(order)
    for rank, alias in enumerate(order):
        ids[alias] = int.from_bytes(rank.to_bytes(TOKEN_BYTES - 1, "big"), "little")
    return ids


def _apply(scheduler: Scheduler, requests: dict[int, Request], event: Event, tokens: list[int]) -> None:
    if "add" in event:
        request = _request(event["add"], requests, tokens)
        request.forks = [_request(fork, requests, tokens) for fork in event["forks"]]
        scheduler.add(request)
    elif "fork" in event:
        child = _request(event["child"], requests, tokens)
        scheduler.fork(requests[event["fork"]], child)
    elif "extend" in event:
        requests[event["extend"]].candidates = None
        scheduler.extend(requests[event["extend"]], tokens[event["token"]])
    elif "finish" in event:
        scheduler.finish(requests[event["finish"]], event["reason"])
    else:
        raise ValueError(f"unknown event {sorted(event)}")


def _request(described: Event, requests: dict[int, Request], tokens: list[int]) -> Request:
    request = Request(
        request_id=described["id"],
        token_ids=[tokens[alias] for alias in described["tokens"]],
        prompt_len=described["prompt_len"],
        params=SamplingParams(max_tokens=None, prompt_logprobs=0 if described["scored"] else None),
        max_len=described["max_len"],
        seed=0,
        stop_ids=frozenset(tokens[alias] for alias in described["stop_ids"]),
        salt=described["salt"],
        priority=described["priority"],
        beam_width=described["beam_width"],
        num_candidates=described["num_candidates"],
        num_preemptions=described["num_preemptions"],
    )
    request.turn = type(request.turn)(*described["turn"])
    requests[request.request_id] = request
    return request


def _result(event: Event, tokens: list[int]) -> StepResult:
    return StepResult(
        [tokens[alias] for alias in event["chosen"]],
        dict.fromkeys(event["failures"], "it failed"),
        candidates={i: [] for i in event["candidates"]},
        prompt_logprobs={int(i): [()] * count for i, count in event["scored"].items()},
    )


def _difference(recorded: Event, found: Event) -> str | None:
    for name, value in found.items():
        if recorded.get(name) != json.loads(json.dumps(value)):
            return f"{name} was {recorded.get(name)}, is {value}"
    return None


def _report(
    scheduler: Scheduler,
    requests: dict[int, Request],
    num_steps: int,
    num_tokens: int,
    difference: str | None,
) -> ReplayReport:
    preemptions = scheduler.stats().num_preemptions
    return ReplayReport(len(requests), num_steps, num_tokens, preemptions, difference)
