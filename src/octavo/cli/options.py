"""Options that several commands share."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.cli import config
from octavo.cli.completion import complete_model, one_of
from octavo.core.config import Activations as ActivationNames
from octavo.core.config import BlockSizes
from octavo.core.config import KVDtype as KVDtypeNames
from octavo.core.config import Scheduling as SchedulingNames
from octavo.core.config import Speculative as SpeculativeNames
from octavo.core.errors import InvalidConfig, InvalidRequest, shown
from octavo.core.units import parse_bytes

DEFAULT_MODEL = "smollm2"

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with options; those of the command line win.",
        callback=config.load,
        is_eager=True,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Directory, .gguf file, Hugging Face repository id, or short name.",
        autocompletion=complete_model,
    ),
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help="The same as --model.", show_default=False, autocompletion=complete_model
    ),
]
BlockSize = Annotated[
    str,
    typer.Option(help="Tokens per KV block: a multiple of 8 in 8..128, or by layers, e.g. 0-9=64,10-29=16."),
]
PrefixCache = Annotated[
    bool, typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse the KV of equal beginnings.")
]
KVMemory = Annotated[
    str | None, typer.Option(help="Size of the KV pool, e.g. 4GiB. Default: a share of the free memory.")
]
KVDtype = Annotated[
    str,
    typer.Option(
        help="Element type of K and V: auto, bfloat16, float16, float32, int8.",
        autocompletion=one_of(KVDtypeNames),
    ),
]
Activations = Annotated[
    str,
    typer.Option(help="Input of linear layers: auto, int8, float32.", autocompletion=one_of(ActivationNames)),
]
Threads = Annotated[int | None, typer.Option(help="Worker threads. Default: the cores this process may use.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Requests that run at once.")]
MaxContext = Annotated[
    int | None, typer.Option(help="Longest sequence in tokens. Default: the model's limit.")
]
Temperature = Annotated[float, typer.Option(help="0 always takes the most likely token.")]
TopK = Annotated[int, typer.Option(help="Sample among the k most likely tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Sample among the most likely tokens of this total probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this fraction of the most likely one.")]
NumSamples = Annotated[int, typer.Option("--n", help="Continuations of each prompt, 1 to 64.")]
Beams = Annotated[
    int | None,
    typer.Option(help="Search with so many beams, 1 to 32; gives the best --n."),
]
JsonSchema = Annotated[
    str | None, typer.Option(help="JSON schema of the output, as text or as the name of a file.")
]
Regex = Annotated[str | None, typer.Option(help="Regular expression that the output matches.")]
Speculative = Annotated[
    str | None,
    typer.Option(
        help='"ngram" guesses tokens ahead from what was said before; same output.',
        autocompletion=one_of(SpeculativeNames),
    ),
]
MaxDrafts = Annotated[int, typer.Option(help="Tokens guessed at once at most, 1 to 32.")]
Scheduling = Annotated[
    str,
    typer.Option(
        help='"fcfs" serves who comes first, "priority" who is most urgent.',
        autocompletion=one_of(SchedulingNames),
    ),
]
MaxStepTokens = Annotated[int, typer.Option(help="Tokens computed per step at most.")]
MaxChunkTokens = Annotated[
    int | None,
    typer.Option(help="Of these, how many may be of prompts while others decode. Default: all."),
]
Record = Annotated[
    Path | None, typer.Option(help="Write every decision of the scheduler here, for `octavo replay`.")
]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
Stop = Annotated[
    list[str] | None, typer.Option(help="Text that ends the answer; may be given several times.")
]


def parse_block_size(text: str) -> BlockSizes:
    """``"16"``, or ``"0-9=64,10,12-29=16"``: what stands before each "=" are layers."""
    if text.strip().isdecimal():
        return int(text)
    sizes: dict[str, int] = {}
    layers = ""
    for part in text.split(","):
        name, equals, size = part.partition("=")
        layers += name.strip()
        if not equals:
            layers += ","
        elif size.strip().isdecimal() and layers not in sizes:
            sizes[layers] = int(size)
            layers = ""
        else:
            break
    if layers:
        raise InvalidConfig(f"block_size={text!r}: write one number, or for example 0-9=64,10-29=16")
    return sizes


def parse_size(name: str, text: str | None) -> int | None:
    """Bytes of an option like ``"4GiB"``, at least one.

    Raises:
        InvalidConfig: it is no such thing.
    """
    if text is None:
        return None
    try:
        num_bytes = parse_bytes(text)
    except ValueError as error:
        raise InvalidConfig(f"{name}={text!r}: {error}") from error
    if num_bytes == 0:
        raise InvalidConfig(f"{name}={text!r}: must be at least 1 byte")
    return num_bytes


def parse_object(name: str, text: str) -> dict[str, Any]:
    """The JSON object that an option is given.

    Raises:
        InvalidConfig: it is none.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"{name}={shown(text)}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidConfig(f"{name}={shown(text)}: must be a JSON object")
    return found


def parse_structured(json_schema: str | None, regex: str | None) -> dict[str, Any] | None:
    """The fields of a ``StructuredOutput``, or None if nothing is asked for.

    Raises:
        InvalidRequest: the schema's file cannot be read.
    """
    given: dict[str, Any] = {}
    if regex is not None:
        given["regex"] = regex
    if json_schema is not None:
        given["json_schema"] = json_schema
        if not json_schema.lstrip().startswith(("{", "true")):
            try:
                given["json_schema"] = Path(json_schema).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise InvalidRequest(f"cannot read {json_schema}: {error}", param="json_schema") from error
    return given or None
