"""Options that several commands share."""

from typing import Annotated

import typer

from octavo.core.config import BlockSizes
from octavo.core.errors import InvalidConfig

DEFAULT_MODEL = "smollm2"

Model = Annotated[
    str,
    typer.Option("--model", "-m", help="Directory, .gguf file, Hugging Face repository id, or short name."),
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
    str, typer.Option(help="Element type of K and V: auto, bfloat16, float16, float32, int8.")
]
Activations = Annotated[str, typer.Option(help="Input of linear layers: auto, int8, float32.")]
Threads = Annotated[int | None, typer.Option(help="Worker threads. Default: the cores this process may use.")]
MaxNumSeqs = Annotated[int, typer.Option(help="Requests that run at once.")]
MaxContext = Annotated[
    int | None, typer.Option(help="Longest sequence in tokens. Default: the model's limit.")
]
Temperature = Annotated[float, typer.Option(help="0 always takes the most likely token.")]
TopK = Annotated[int, typer.Option(help="Sample among the k most likely tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Sample among the most likely tokens of this total probability.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this fraction of the most likely one.")]
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
