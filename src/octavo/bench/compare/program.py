"""A program that serves requests: started, frozen while others work, ended."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, Literal, get_args

from octavo.bench.compare.contestant import Facts, Running
from octavo.bench.compare.lines_target import LinesTarget
from octavo.bench.compare.watchdog import Watchdog
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.load.rss import peak_rss_bytes
from octavo.bench.load.target import Target
from octavo.core.errors import InvalidConfig, OctavoError, shown

Protocol = Literal["openai", "lines"]

_ASK_AGAIN_S: Final = 0.1
_END_S: Final = 15.0
_MOST_TOLD: Final = 300  # characters of a program's last words
_MOST_LINE: Final = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How to start one.

    Attributes:
        command: program and arguments; ``{port}`` becomes a free port.
        protocol: "openai", a server at that port; "lines", requests on standard input, answers on standard
            output, as ``lines_target`` describes.
        env: on top of the environment, or instead of it where a value is None: the name is taken out.
        body: fields to add to every request, of a server.
        model_name: what a server calls the model; None asks it.
        timeout_s: until the first answer.

    Raises:
        InvalidConfig: a value is not as it should be.
    """

    facts: Facts
    command: Sequence[str]
    protocol: Protocol = "openai"
    env: Mapping[str, str | None] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    model_name: str | None = None
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.protocol not in get_args(Protocol):
            raise InvalidConfig(f"protocol={shown(self.protocol)}: openai or lines")
        if not self.command:
            raise InvalidConfig(f"{self.facts.name}: no command")

    @property
    def runs_at(self) -> None:
        """Nowhere before it is started."""
        return

    @property
    def is_server(self) -> bool:
        """A library is none: a request is a prompt."""
        return self.protocol == "openai"

    async def start(self, asking: ServerOptions) -> Running:
        """Start it and wait for its first answer.

        Raises:
            OctavoError: it ends, or does not answer in time; with its last words.
        """
        begin = time.perf_counter()
        started = await _Started.begin(self, asking)
        try:
            async with asyncio.timeout(self.timeout_s):
                await started.wait_ready()
        except TimeoutError:
            words = started.last_words()
            await started.stop()
            raise OctavoError(f"no answer within {self.timeout_s:g} s; {words}") from None
        except BaseException:
            await started.stop()
            raise
        started.start_s = time.perf_counter() - begin
        return started


class _Started:
    """A running program and all that it started: a process group of its own."""

    def __init__(
        self, process: asyncio.subprocess.Process, target: Target, log: IO[bytes], watchdog: Watchdog
    ) -> None:
        self.target = target
        self.start_s: float | None = None
        self._process = process
        self._log = log
        self._watchdog = watchdog
        self._peak: int | None = None

    @staticmethod
    async def begin(program: Program, asking: ServerOptions) -> "_Started":
        port = _free_port()
        command = [part.replace("{port}", str(port)) for part in program.command]
        env = {**os.environ, **program.env}
        watchdog = Watchdog()
        log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the program
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL if program.is_server else asyncio.subprocess.PIPE,
                stdout=log if program.is_server else asyncio.subprocess.PIPE,
                stderr=log,
                env={name: value for name, value in env.items() if value is not None},
                start_new_session=True,
                limit=_MOST_LINE,
            )
        except OSError as error:
            log.close()
            watchdog.dismiss()
            raise OctavoError(f"cannot start {command[0]}: {error}") from error
        watchdog.guard(process.pid)
        target: Target
        if program.is_server:
            options = replace(
                asking,
                model=program.model_name,
                body=dict(program.body),
                pid=process.pid,
                asks_memory=False,
            )
            target = OpenAITarget(f"http://127.0.0.1:{port}", options)
        else:
            assert process.stdin is not None
            assert process.stdout is not None
            target = LinesTarget(process.stdin, process.stdout, timeout_s=asking.timeout_s)
        return _Started(process, target, log, watchdog)

    async def wait_ready(self) -> None:
        """Try until it answers."""
        while True:
            ended = asyncio.create_task(self._process.wait())
            opening = asyncio.create_task(self.target.open())
            try:
                await asyncio.wait({ended, opening}, return_when=asyncio.FIRST_COMPLETED)
                if opening.done() and opening.exception() is None:
                    return
                if not opening.done() or self._process.returncode is not None:
                    status = await asyncio.wait_for(ended, _END_S)
                    raise OctavoError(f"ended with status {status}; {self.last_words()}")
                error = opening.exception()
                if not isinstance(error, OctavoError) or isinstance(self.target, LinesTarget):
                    assert error is not None
                    raise error
            finally:
                for task in (ended, opening):
                    task.cancel()
                await asyncio.gather(ended, opening, return_exceptions=True)
            await self.target.close()
            await asyncio.sleep(_ASK_AGAIN_S)

    def rest(self) -> None:
        """Freeze it: an idle server that asks the clock over and over takes a core from the others."""
        self._peak = self.peak_rss_bytes()
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def peak_rss_bytes(self) -> int | None:
        """Of all its processes, summed."""
        return peak_rss_bytes(self._process.pid) or self._peak

    async def stop(self) -> None:
        """Ask it to end, then make it."""
        self._peak = self.peak_rss_bytes()
        self.wake()
        await self.target.close()
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            pass
        finally:
            self._signal(signal.SIGKILL)  # and what it left behind
            await self._process.wait()
            self._watchdog.dismiss()
        if not self._log.closed:
            self._log.close()

    def last_words(self) -> str:
        """The end of what it printed."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4 * _MOST_TOLD))
        text = " ".join(self._log.read().decode(errors="replace").split())
        self._log.seek(0, os.SEEK_END)
        return f"it said: {text[-_MOST_TOLD:]}" if text else "it said nothing"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def read_program(file: Path) -> Program:
    """A program from a JSON file with the fields of ``Facts`` and of ``Program``.

    Raises:
        InvalidConfig: it is no such file.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError("not an object")
        _check_keys(found)
        facts = {name: found.pop(name) for name in Facts.__dataclass_fields__ if name in found}
        return Program(facts=Facts(**facts), **found)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidConfig(f"{file}: not a program to compare: {error}") from error


def _check_keys(found: Mapping[str, Any]) -> None:
    known = [*Facts.__dataclass_fields__, *(name for name in Program.__dataclass_fields__ if name != "facts")]
    if unknown := [name for name in found if name not in known]:
        raise ValueError(f"no key is called {shown(unknown[0])}; known are {', '.join(known)}")
    if missing := [name for name in ("name", "command") if name not in found]:
        raise ValueError(f"{missing[0]} is missing")


def write_program(program: Program, file: Path) -> None:
    """What ``read_program`` reads."""
    found = {
        **program.facts.as_dict(),
        "command": list(program.command),
        "protocol": program.protocol,
        "env": dict(program.env),
        "body": dict(program.body),
        "model_name": program.model_name,
        "timeout_s": program.timeout_s,
    }
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
