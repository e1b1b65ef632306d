"""``octavo chat``: a conversation in the terminal, or line by line from a pipe."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import options
from octavo.cli.conversation import SETTINGS, Conversation
from octavo.cli.terminal import visible
from octavo.core.display import counted
from octavo.core.errors import InvalidRequest, OctavoError
from octavo.core.sampling import SamplingParams

if TYPE_CHECKING:
    from octavo.core.request import RequestOutput
    from octavo.engine.llm import LLM

_HELP = """\
/help              this list
/reset             forget the conversation
/system TEXT       instructions for the model, from now on; without a text there are none
/set               show the settings
/set NAME VALUE    change one, e.g. /set temperature 0.2
/save FILE         write conversation and settings as JSON
/load FILE         go on with a saved one
/stats             the KV cache in numbers
/exit              leave (so does end of input)
A line that ends in a backslash goes on in the next.
Ctrl-C             stop the answer"""


def chat(
    *,
    model: options.Model = options.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="Instructions for the model.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens per answer at most.")] = 1024,
    temperature: options.Temperature = 0.6,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.95,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    block_size: options.BlockSize = "16",
    kv_memory: options.KVMemory = None,
    kv_dtype: options.KVDtype = "auto",
    activations: options.Activations = "auto",
    threads: options.Threads = None,
    max_context: options.MaxContext = None,
    config: options.Config = None,
) -> None:
    """Talk to a model. What was said before stays in the KV cache and is not computed again."""
    if sys.stdin is None:
        raise OctavoError("standard input is closed: chat reads what to answer from it")
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or (),
    )
    from octavo.engine.llm import LLM

    with LLM(
        model,
        block_size=options.parse_block_size(block_size),
        kv_memory=kv_memory,
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineConfig
        activations=activations,  # type: ignore[arg-type]
        threads=threads,
        max_num_seqs=1,
        max_context=max_context,
    ) as llm:
        session = Session(llm, params, system)
        session.run()
    if session.num_failed and not session.is_interactive:
        raise OctavoError(f"messages that got no answer, or not all of it: {session.num_failed}")


class Session:
    """Reads lines, answers them, obeys commands.

    Attributes:
        conversation: what was said.
        num_failed: messages that could not be answered in full.
        is_interactive: whether a person types the lines.
    """

    def __init__(self, llm: "LLM", params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self.conversation = Conversation(params, system)
        self.num_failed = 0
        self.is_interactive = sys.stdin.isatty()

    def run(self) -> None:
        """Until ``/exit`` or the end of input.

        Raises:
            OctavoError: a command failed, and nobody is there to see it and do something else.
        """
        if self.is_interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # gives input() line editing and history
            _note("Type a message, or /help.")
        while (text := self._read()) is not None:
            if text in ("/exit", "/quit", "/bye"):
                return
            if text.startswith("/"):
                try:
                    self._command(*text.partition(" ")[::2])
                except InvalidRequest as error:
                    if not self.is_interactive:
                        raise
                    _note(str(error))
            elif text:
                self._answer(text)

    def _read(self) -> str | None:
        """A message or command, of one line or of several; None at the end of input."""
        lines: list[str] = []
        try:
            while (line := self._read_line("... " if lines else "> ")) is not None:
                lines.append(line.removesuffix("\\"))
                if not line.endswith("\\"):
                    break
        except KeyboardInterrupt:  # drops what was typed
            print()
            return ""
        return "\n".join(lines).strip() if lines else None

    def _read_line(self, prompt: str) -> str | None:
        try:
            return input(prompt if self.is_interactive else "")
        except EOFError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise OctavoError(f"cannot read standard input: {error}") from error

    def _command(self, name: str, argument: str) -> None:
        argument = argument.strip()
        conversation = self.conversation
        match name:
            case "/reset":
                conversation.messages = []
                _note("The conversation begins anew.")
            case "/system":
                conversation.system = argument or None
                _note("The model has new instructions." if argument else "The model has no instructions.")
            case "/set":
                setting, _, value = argument.partition(" ")
                if argument:
                    conversation.set(setting, value.strip())
                shown = [setting.replace("-", "_")] if argument else SETTINGS
                _note("\n".join(f"{each} {getattr(conversation.params, each)}" for each in shown))
            case "/save":
                conversation.save(_file(argument))
                _note(f"Saved {counted(len(conversation.messages), 'message')}.")
            case "/load":
                conversation.load(_file(argument))
                _note(f"Loaded {counted(len(conversation.messages), 'message')}.")
            case "/stats":
                _note(f"{self._llm.capacity}\n{self._llm.memory()}")
            case "/help":
                _note(_HELP)
            case _:
                _note(f"unknown command {name}\n{_HELP}")

    def _answer(self, text: str) -> None:
        conversation = self.conversation
        messages = conversation.messages
        messages.append({"role": "user", "content": text})
        try:
            stream = self._llm.stream(self._llm.encode_chat(conversation.prompt), conversation.params)
        except InvalidRequest as error:
            self.num_failed += 1
            messages.pop()
            _note(f"{error}\n/reset begins a new conversation." if messages else str(error))
            return
        try:
            for piece in stream:
                print(visible(piece, sys.stdout), end="", flush=True)
        except KeyboardInterrupt:
            stream.close()
        except OctavoError as error:
            self.num_failed += 1
            _note(str(error))
        print(flush=True)
        output = stream.output
        messages.append({"role": "assistant", "content": output.outputs[0].text})
        if self.is_interactive and output.error is None:
            _note(_describe(output))


def _file(argument: str) -> Path:
    if not argument:
        raise InvalidRequest("name a file, e.g. /save chat.json")
    return Path(argument).expanduser()


def _describe(output: "RequestOutput") -> str:
    completion, metrics = output.outputs[0], output.metrics
    count = len(completion.token_ids)
    parts = [counted(count, "token")]
    if metrics.first_token_s is not None and count > 1:
        parts.append(f"{(count - 1) / max(metrics.finished_s - metrics.first_token_s, 1e-9):.1f} tokens/s")
    if completion.finish_reason == "length":
        parts.append("cut off by the limit")
    elif completion.finish_reason == "abort":
        parts.append("stopped")
    parts.append(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens from the cache")
    return "[" + ", ".join(parts) + "]"


def _note(text: str) -> None:
    """Something that is not the model's: to standard error, so that a pipe carries answers only."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(visible(text, sys.stderr), style="dim"))
