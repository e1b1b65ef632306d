"""Octavo as a contestant: its server, or the library in a process of its own."""

import json
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import octavo
from octavo.bench.compare.contestant import Facts
from octavo.bench.compare.program import Program
from octavo.core.errors import OctavoError
from octavo.core.sampling import SamplingParams
from octavo.engine.generation import Generation
from octavo.engine.llm import LLM
from octavo.engine.precision import precision_of

SERVER: Final = "octavo server"
LIBRARY: Final = "octavo library"


def server(model: str, settings: Mapping[str, Any], *, precision: str = "") -> Program:
    """``octavo serve``.

    Args:
        settings: of ``LLM``, by name.
        precision: for the report, if known.
    """
    flags: list[str] = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            flags += [f"--{flag}", str(value)]
    return Program(
        facts=_facts(SERVER, settings, precision),
        command=[sys.executable, "-m", "octavo", "serve", model, "--port", "{port}", "--json", *flags],
    )


def library(model: str, settings: Mapping[str, Any], *, precision: str = "") -> Program:
    """The engine without a server, driven through the pipes of its process."""
    return Program(
        facts=_facts(LIBRARY, settings, precision),
        command=[sys.executable, "-m", "octavo.bench.compare.octavo_itself", model, json.dumps(settings)],
        protocol="lines",
    )


def precision_for(model: str, settings: Mapping[str, Any]) -> str:
    """In which precision a model runs; loads it, for less than a second if it is a small one."""
    with LLM(model, **settings) as llm:
        return precision_of(llm)


def _facts(name: str, settings: Mapping[str, Any], precision: str) -> Facts:
    chosen = ", ".join(f"{key}={value}" for key, value in settings.items() if value is not None)
    return Facts(
        name=name,
        version=octavo.__version__,
        precision=precision,
        settings=chosen or "as it comes",
    )


class _Driver:
    """Takes lines, steps the engine, answers in lines."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._inbox: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._live: dict[int, tuple[Generation, list[list[float]]]] = {}

    def run(self) -> None:
        """Until standard input ends."""
        threading.Thread(target=self._read, daemon=True).start()
        say({"ready": True})
        while True:
            while not self._inbox.empty() or not self._live:
                line = self._inbox.get()
                if line is None:
                    return
                self._begin(json.loads(line))
            self._llm.engine.step()
            for number, (generation, _) in list(self._live.items()):
                if generation.finished:
                    self._answer(number)

    def _read(self) -> None:
        for line in sys.stdin:
            self._inbox.put(line)
        self._inbox.put(None)

    def _begin(self, asked: dict[str, Any]) -> None:
        params = SamplingParams(temperature=0, max_tokens=asked["max_tokens"], ignore_eos=True)
        try:
            generation = self._llm.prepare(asked["prompt"], params)
            chunks: list[list[float]] = []
            generation.on_change = _note(generation, chunks)
            self._llm.engine.submit(generation)
        except OctavoError as error:
            say({"id": asked["id"], "error": str(error)})
            return
        self._live[asked["id"]] = generation, chunks

    def _answer(self, number: int) -> None:
        generation, chunks = self._live.pop(number)
        output = generation.output()
        if output.error is not None:
            say({"id": number, "error": str(output.error)})
            return
        request = generation.request
        cached = request.num_cached_tokens
        say({"id": number, "chunks": chunks, "prompt_tokens": request.prompt_len, "cached_tokens": cached})


def _note(generation: Generation, chunks: list[list[float]]) -> Callable[[bool], None]:
    seen = 0

    def on_change(is_over: bool) -> None:
        nonlocal seen
        if new := generation.num_output_tokens - seen:
            seen += new
            chunks.append([time.perf_counter(), new])

    return on_change


def say(line: dict[str, Any]) -> None:
    """Write a line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    """``MODEL SETTINGS``: the second is a JSON object."""
    model, settings = sys.argv[1:]
    with LLM(model, **json.loads(settings)) as llm:
        _Driver(llm).run()


if __name__ == "__main__":
    main()
