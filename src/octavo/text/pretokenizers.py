"""The pre-tokenizers that GGUF files refer to by name.

Byte-level BPE merges inside words only; what a word is, a regular expression says. A GGUF file carries just
its name (``tokenizer.ggml.pre``). The expressions are those of the models' own ``tokenizer.json``, which
llama.cpp's vocabulary source quotes. Each is applied to the parts that the one before it left; its matches
and the text between them become parts of their own.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from octavo.core.errors import UnsupportedModel

DIGIT = "one numeric character"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One named way to cut text into words, with the properties that go with the name.

    Attributes:
        patterns: regular expressions, or DIGIT, in order of application.
        nfc: the text is normalized to NFC first.
        ignore_merges: a word that is a vocabulary entry is that token, whatever the merges would make of it.
        add_bos: prompts get a BOS token if the file does not say.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """The ``tokenizers`` component: the cuts, then GPT-2's byte alphabet."""
        # DIGIT is not written \p{N}: the libraries behind the two know different versions of Unicode, and
        # the models' own files use this component.
        cuts = [
            pre_tokenizers.Digits(individual_digits=True)
            if pattern == DIGIT
            else pre_tokenizers.Split(Regex(pattern), "isolated")
            for pattern in self.patterns
        ]
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, alphabet])


_DIGITS_THEN_GPT2 = PreTokenizer((DIGIT, GPT2))
_LLAMA3 = PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer((GPT2,)),
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "tekken": PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer((QWEN2,), nfc=True),
    # The same cuts with another name; nothing documents a normalizer for it.
    "deepseek-r1-qwen": PreTokenizer((QWEN2,)),
    # What llama.cpp does for files that name nothing better.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
}


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """Look a pre-tokenizer up by the name GGUF files use.

    Raises:
        UnsupportedModel: the name is not known; guessing would give wrong tokens without a sign of it.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise UnsupportedModel(
            f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; "
            f"known are: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    return found
