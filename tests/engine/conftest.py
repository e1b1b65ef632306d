from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel


@pytest.fixture(scope="session")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[PreTrainedModel, Path]]:
    """The named tiny model of transformers, and a directory with all that an LLM needs of it."""
    made: dict[str, tuple[PreTrainedModel, Path]] = {}

    def get(name: str) -> tuple[PreTrainedModel, Path]:
        if name not in made:
            model = tiny.make(name)
            path = tiny.save(model, tmp_path_factory.mktemp(name))
            _bytes_tokenizer(tiny.VOCAB_SIZE).save(str(path / "tokenizer.json"))
            made[name] = model, path
        return made[name]

    return get


def _bytes_tokenizer(vocab_size: int) -> Tokenizer:
    """One token for each of the first bytes; what a text means is of no interest here."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())[:vocab_size]
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
