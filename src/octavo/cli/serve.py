"""``octavo serve``: the HTTP server and its page, until it is told to stop."""

import contextlib
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli import options
from octavo.cli.completion import one_of
from octavo.core.errors import InvalidConfig
from octavo.server.settings import ReasoningParserName, ServerSettings, ToolParserName


def serve(
    name: options.ModelArgument = None,
    model: options.Model = options.DEFAULT_MODEL,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Requests must bring it; may be given several times. Seen by all who list processes: "
            "--api-key-file is not.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with a key in each line; empty lines and # comments are none.")
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option("--model-name", "--served-model-name", help="What clients call it. Default: --model."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(help="Name beside localhost under which clients come, through a proxy; repeatable."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help='Origin whose pages may use the API, "*" for all; may be given several times.'),
    ] = None,
    max_body_size: Annotated[str, typer.Option(help="Of a request, e.g. 16MiB.")] = "4MiB",
    max_prompts: Annotated[int, typer.Option(help="Prompts of one completions request at most.")] = 64,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Sequences that may wait; more are answered with 429. 0 is no limit.")
    ] = 256,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that running requests get when the server is told to stop.")
    ] = 30.0,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log prompts and outputs.")] = False,
    show_tokens: Annotated[
        bool | None,
        typer.Option(
            "--show-tokens/--no-show-tokens",
            help="Memory view tells the tokens of a block. Default: if only this machine can connect.",
        ),
    ] = None,
    tool_parser: Annotated[
        str,
        typer.Option(
            help="Form of tool calls: auto, hermes, llama3, none.", autocompletion=one_of(ToolParserName)
        ),
    ] = "auto",
    reasoning_parser: Annotated[
        str,
        typer.Option(
            help="How thoughts are marked: auto, think, none.", autocompletion=one_of(ReasoningParserName)
        ),
    ] = "auto",
    metrics_prefix: Annotated[
        str, typer.Option(help='Begins the names of metrics; "vllm" suits dashboards made for it.')
    ] = "octavo",
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(help="URL of an OpenTelemetry collector for traces, e.g. http://127.0.0.1:4318."),
    ] = None,
    block_size: options.BlockSize = "16",
    kv_memory: options.KVMemory = None,
    kv_dtype: options.KVDtype = "auto",
    activations: options.Activations = "auto",
    threads: options.Threads = None,
    max_num_seqs: options.MaxNumSeqs = 64,
    max_step_tokens: options.MaxStepTokens = 512,
    max_chunk_tokens: options.MaxChunkTokens = None,
    max_context: options.MaxContext = None,
    prefix_cache: options.PrefixCache = True,
    scheduling: options.Scheduling = "fcfs",
    speculative: options.Speculative = None,
    max_drafts: options.MaxDrafts = 8,
    record: options.Record = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Once ready, print one line of JSON instead of the start-up lines.")
    ] = False,
    config: options.Config = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API has it, with a page to chat and to see the memory.

    SIGTERM or Ctrl-C finishes what runs and ends; a second one ends at once.
    """
    model = name or model
    settings = ServerSettings(
        host=host,
        port=port,
        api_keys=(*(api_key or ()), *_read_keys(api_key_file)),
        model_name=_name_of(model) if model_name is None else model_name,
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        max_body_bytes=options.parse_size("max_body_size", max_body_size) or 0,
        max_prompts=max_prompts,
        drain_timeout_s=drain_timeout,
        log_prompts=log_prompts,
        show_tokens=show_tokens,
        tool_parser=tool_parser,  # type: ignore[arg-type]  # checked by ServerSettings
        reasoning_parser=reasoning_parser,  # type: ignore[arg-type]
        metrics_prefix=metrics_prefix,
        otlp_endpoint=otlp_endpoint,
    )
    _log_to_stderr()
    from octavo.cli import starting
    from octavo.engine.llm import LLM
    from octavo.server import serving

    serving.listen(host, port).close()  # if the address is taken, say so before a large model is loaded
    if not as_json:
        _say([starting.first_line(settings)])
    with LLM(
        model,
        block_size=options.parse_block_size(block_size),
        kv_memory=kv_memory,
        kv_dtype=kv_dtype,  # type: ignore[arg-type]  # checked by EngineConfig
        activations=activations,  # type: ignore[arg-type]
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_step_tokens=max_step_tokens,
        max_chunk_tokens=max_chunk_tokens,
        max_context=max_context,
        prefix_cache=prefix_cache,
        scheduling=scheduling,  # type: ignore[arg-type]
        max_waiting=max_waiting or None,
        speculative=speculative,  # type: ignore[arg-type]
        max_drafts=max_drafts,
        record=record,
    ) as llm:
        found = starting.describe(llm, settings)
        if not as_json:
            _say(starting.lines(found))
        if warning := starting.warning(settings):
            _say([f"octavo: warning: {warning}"])

        unwritten: list[OSError] = []

        def on_ready(url: str) -> None:
            if not as_json:
                _say(starting.ready_lines(url))
                return
            try:
                print(starting.as_json(found, url), flush=True)
            except OSError as error:  # nobody would learn where it listens
                unwritten.append(error)
                signal.raise_signal(signal.SIGTERM)

        serving.serve(llm, settings, on_ready=on_ready)
        if unwritten:
            raise unwritten[0]


def _read_keys(file: Path | None) -> list[str]:
    """The keys of a file.

    Raises:
        InvalidConfig: it cannot be read, or has none: nobody means that by naming a file.
    """
    if file is None:
        return []
    try:
        found = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"api_key_file: cannot read {file}: {error}") from error
    keys = [line for line in found if line and not line.startswith("#")]
    if not keys:
        raise InvalidConfig(f"api_key_file: {file} has no keys; write one in each line")
    return keys


def _name_of(model: str) -> str:
    """What clients call a model that has no other name: for a file or a directory, its name."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    return path.stem if path.is_file() else path.resolve().name


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("octavo")
    log.handlers = [handler]
    log.setLevel(logging.INFO)


def _say(lines: list[str]) -> None:
    """To standard error; that nobody reads it any more is no reason to end."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(*lines, sep="\n", file=sys.stderr, flush=True)
