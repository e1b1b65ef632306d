"""A real server: ``octavo serve`` as a process of its own, with the real model."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai

Launch = Callable[..., "Server"]


class Server:
    """A running ``octavo serve``.

    Attributes:
        url: where it answers.
        started: what it said of itself when it was ready.
    """

    def __init__(self, *options: str) -> None:
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in stop()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "octavo", "serve", "--port", "0", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the server did not start:\n{self.log_text()}"
        self.started: dict[str, Any] = json.loads(line)
        self.url: str = self.started["url"]
        self.model: str = self.started["model"]

    def log_text(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=120, **options)

    def openai(self, key: str = "none", **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=120, **options)

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Ends the server; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signum)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
                raise
        return self.process.returncode

    def memory(self) -> dict[str, Any]:
        with self.http() as client:
            return client.get("/v1/memory").raise_for_status().json()

    def wait_until_idle(self) -> dict[str, Any]:
        """Wait until nothing runs or waits; what the memory is used for then."""
        end = time.monotonic() + 60
        while True:
            found = self.memory()
            stats = found["scheduler"]
            if stats["num_running"] == stats["num_waiting"] == 0:
                return found
            assert time.monotonic() < end, f"still busy: {stats}"
            time.sleep(0.05)
