"""Structured output on real vocabularies: what masks allow is what the language allows."""

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from octavo.core.errors import InvalidRequest
from octavo.core.structured import MAX_CHOICES, StructuredOutput
from octavo.engine import grammar
from octavo.engine.grammar import GrammarCompiler, GrammarFailed, GrammarMatcher
from octavo.text.gguf_tokenizer import GGUFVocabulary, build_gguf_tokenizer
from octavo.text.hf_tokenizer import build_hf_tokenizer
from octavo.text.loading import load_text
from octavo.text.tokenizer import Tokenizer
from octavo.weights.gguf import open_gguf

PADDING = 45  # logits are this much wider than the vocabulary, and not a multiple of 32
WHITE = r"[ \t\n\r]*"

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "größe": {"type": "number", "minimum": 0, "maximum": 3},
        "colour": {"enum": ["red", "green", "grün", None, 7]},
        "tags": {"type": "array", "items": {"enum": ["a", "ab", "日本"]}, "minItems": 1, "maxItems": 3},
        "parent": {
            "type": "object",
            "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 150}},
            "required": ["age"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "größe", "colour", "tags", "parent"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    value = json.loads(text)
    assert list(value) == ["name", "größe", "colour", "tags", "parent"]
    assert isinstance(value["name"], str)
    assert 1 <= len(value["name"]) <= 12
    assert 0 <= value["größe"] <= 3
    assert value["colour"] in ("red", "green", "grün", None, 7)
    assert 1 <= len(value["tags"]) <= 3
    assert set(value["tags"]) <= {"a", "ab", "日本"}
    assert list(value["parent"]) == ["age"]
    assert isinstance(value["parent"]["age"], int)
    return 0 <= value["parent"]["age"] <= 150


def is_sum(text: str) -> bool:
    return re.fullmatch(r"[0-9()+]+", text) is not None and isinstance(eval(text), int)


CHOICES = ["app", "apple", "applesauce", "apple pie", 'q"\\\n\x7f\t', "日本😀", "a" * 40]
SUM = """
start: term ("+" term)*
term: NUMBER | "(" start ")"
NUMBER: /[1-9][0-9]{0,3}/
"""
CASES: dict[str, tuple[StructuredOutput, Callable[[str], object]]] = {
    "person": (StructuredOutput(json_schema=PERSON), is_person),
    "regex": (
        StructuredOutput(regex=r"(\+49|0)[0-9]{3,5}-[0-9]{4}|ü{2,3}x?"),
        lambda text: re.fullmatch(r"(\+49|0)[0-9]{3,5}-[0-9]{4}|ü{2,3}x?", text),
    ),
    "choice": (StructuredOutput(choice=CHOICES), lambda text: text in CHOICES),
    "one choice": (StructuredOutput(choice=["no other words"]), lambda text: text == "no other words"),
    "lark": (StructuredOutput(grammar=SUM), is_sum),
    "gbnf": (
        StructuredOutput(grammar='root ::= "x" [0-9]+ "!"?'),
        lambda text: re.fullmatch("x[0-9]+!?", text),
    ),
    "enum": (
        StructuredOutput(json_schema={"enum": ["x", 1.5, True, {"k": [1]}]}),
        lambda text: json.loads(text) in ("x", 1.5, True, {"k": [1]}),
    ),
}


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> Tokenizer:
    return load_text(open_gguf(smollm2_path))[0]


@pytest.fixture(scope="module")
def compiler(smollm2) -> GrammarCompiler:
    return GrammarCompiler(
        smollm2,
        vocab_size=smollm2.vocab_size + PADDING,
        end_token_ids=[*smollm2.eos_token_ids, smollm2.vocab_size + 1000],
        num_threads=2,
    )


def make(compiler: GrammarCompiler, structured: StructuredOutput) -> GrammarMatcher:
    return compiler.compile(structured).result()


def new_masks(tokenizer: Tokenizer, num_rows: int = 1) -> np.ndarray:
    return np.full((num_rows, -(-(tokenizer.vocab_size + PADDING) // 32)), 0xFFFFFFFF, np.uint32)


def allowed(matcher: GrammarMatcher, tokenizer: Tokenizer) -> np.ndarray:
    mask = new_masks(tokenizer)[0]
    matcher.fill_mask(mask)
    return token_ids(mask)


def token_ids(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def accept_text(matcher: GrammarMatcher, tokenizer: Tokenizer, text: str) -> None:
    for token in tokenizer.encode(text, add_bos=False):
        matcher.accept(token)


def make_stuck(compiler: GrammarCompiler, tokenizer: Tokenizer) -> GrammarMatcher:
    """One that cannot go on: the vocabulary lacks the byte that has to come."""
    assert all(b"\x04" not in tokenizer.token_bytes(id_) for id_ in range(tokenizer.vocab_size))
    matcher = make(compiler, StructuredOutput(regex="ab\x04"))
    accept_text(matcher, tokenizer, "ab")
    return matcher


def walk(
    matcher: GrammarMatcher, tokenizer: Tokenizer, random: np.random.Generator
) -> tuple[list[int], list]:
    """Tokens drawn evenly among those allowed, until an end token; and the mask before each."""
    tokens, masks = [], []
    while not tokens or tokens[-1] not in tokenizer.eos_token_ids:
        assert len(tokens) < 3000
        ids = allowed(matcher, tokenizer)
        assert len(ids)
        assert ids[-1] < tokenizer.vocab_size
        ends = [id_ for id_ in ids if tokenizer.is_special(int(id_))]
        assert ends == (sorted(tokenizer.eos_token_ids) if matcher.may_end else [])
        assert matcher.is_done == (len(ends) == len(ids))
        masks.append(ids)
        tokens.append(int(random.choice(ends if matcher.may_end and len(tokens) > 60 else ids)))
        matcher.accept(tokens[-1])
    assert matcher.is_done
    return tokens, masks


@pytest.mark.parametrize("name", CASES)
def test_whatever_is_drawn_belongs_to_the_language(compiler, smollm2, name):
    structured, belongs = CASES[name]
    random = np.random.default_rng(7)
    texts = set()
    for _ in range(12):
        tokens, _ = walk(make(compiler, structured), smollm2, random)
        text = smollm2.decode(tokens)
        assert belongs(text), text
        texts.add(text)
    assert name == "one choice" or len(texts) > 3


def test_where_one_text_is_left_the_model_spells_it_as_it_does_in_prompts(compiler, smollm2):
    for text in (
        "no other words",
        "unbelievable tokenization",
        "internationalisation",
        "xyzzyplugh",
        "12345 eggs",
    ):
        tokens, _ = walk(make(compiler, StructuredOutput(choice=[text])), smollm2, np.random.default_rng(0))
        usual = smollm2.encode(text, add_bos=False)
        assert tokens[:-1] == usual


def test_any_json(compiler, smollm2):
    for text in ('{"a": [1, -2.5e3, "ü\\n", {}, null]}', "[]", '"x"', "17", "true", '{\n    "a" : 1\n}'):
        matcher = make(compiler, StructuredOutput(json_schema=True))
        accept_text(matcher, smollm2, text)
        assert matcher.may_end
    matcher = make(compiler, StructuredOutput(json_object=True))
    assert {smollm2.token_bytes(int(id_))[:1] for id_ in allowed(matcher, smollm2)} == {b"{"}


def test_white_space_ends_some_time(compiler, smollm2):
    matcher = make(compiler, StructuredOutput(json_object=True))
    accept_text(matcher, smollm2, "{")
    with pytest.raises(GrammarFailed):
        accept_text(matcher, smollm2, "\n " * 50)


def test_rollback_and_replay_give_equal_masks(compiler, smollm2):
    random = np.random.default_rng(3)
    for structured, _ in CASES.values():
        matcher = make(compiler, structured)
        tokens, masks = walk(matcher, smollm2, random)
        at = len(tokens)
        for _ in range(25):
            to = int(random.integers(0, len(tokens) + 1))
            if to < at:
                matcher.rollback(at - to)
            for token in tokens[at:to]:
                matcher.accept(token)
            at = to
            expected = masks[at] if at < len(masks) else sorted(smollm2.eos_token_ids)
            assert np.array_equal(allowed(matcher, smollm2), expected)
            assert matcher.is_done == all(smollm2.is_special(int(id_)) for id_ in expected)
        with pytest.raises(ValueError):
            matcher.rollback(at + 1)


def test_forks_are_independent(compiler, smollm2):
    first = make(compiler, StructuredOutput(regex="a(bc|de)x*"))
    accept_text(first, smollm2, "a")
    second = first.fork()
    accept_text(first, smollm2, "bc")
    accept_text(second, smollm2, "de")
    second.rollback(1)
    accept_text(second, smollm2, "bc")
    assert np.array_equal(allowed(first, smollm2), allowed(second, smollm2))
    first.accept(smollm2.eos_token_ids[0])
    assert first.is_done
    assert first.fork().is_done
    assert not second.is_done


def test_tokens_out_of_place_are_refused_and_change_nothing(compiler, smollm2):
    matcher = make(compiler, StructuredOutput(regex="abx"))
    before = allowed(matcher, smollm2)
    end = smollm2.eos_token_ids[0]
    for token in (end, smollm2.encode("z", add_bos=False)[0], smollm2.vocab_size + 3, 10**6, -1):
        with pytest.raises(GrammarFailed):
            matcher.accept(token)
    assert np.array_equal(allowed(matcher, smollm2), before)
    a, b, x = (smollm2.encode(letter, add_bos=False)[0] for letter in "abx")
    assert matcher.count_acceptable([a, b, a, x]) == 2
    assert matcher.count_acceptable([a, b, x, end, end]) == 4
    assert np.array_equal(allowed(matcher, smollm2), before)
    for token in (a, b, x):
        matcher.accept(token)
    with pytest.raises(GrammarFailed):
        matcher.accept(a)
    matcher.accept(end)
    assert matcher.count_acceptable([end]) == 0
    with pytest.raises(GrammarFailed):
        matcher.accept(end)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_64_at_once_equal_one_at_a_time(smollm2, num_threads):
    compiler = GrammarCompiler(
        smollm2,
        vocab_size=smollm2.vocab_size + PADDING,
        end_token_ids=smollm2.eos_token_ids,
        num_threads=num_threads,
    )
    cases = list(CASES.values())
    pending = [compiler.compile(cases[i % len(cases)][0]) for i in range(64)]
    matchers = [p.result() for p in pending]
    random = np.random.default_rng(5)
    masks, single = new_masks(smollm2, 64), new_masks(smollm2)[0]
    for step in range(40):
        if step == 20:
            matchers[10] = make_stuck(compiler, smollm2)
        failures = compiler.fill_masks(matchers, masks)
        assert list(failures) == ([10] if step >= 20 else [])
        for i, matcher in enumerate(matchers):
            if i in failures:
                continue
            matcher.fill_mask(single)
            assert np.array_equal(masks[i], single)
            ids = token_ids(single)
            token = int(random.choice(ids))
            if not matcher.is_done:
                matcher.accept(token)
    assert compiler.fill_masks([], masks[:0]) == {}


def test_what_the_vocabulary_cannot_spell_fails(compiler, smollm2):
    stuck = make_stuck(compiler, smollm2)
    with pytest.raises(GrammarFailed, match="cannot go on"):
        allowed(stuck, smollm2)
    assert not stuck.is_done
    assert not stuck.may_end
    with pytest.raises(GrammarFailed):
        stuck.accept(smollm2.eos_token_ids[0])
    with pytest.raises(InvalidRequest):
        make(compiler, StructuredOutput(choice=["\x04b"]))


def test_half_a_character_that_cannot_be_spelled_fails_its_sequence(compiler, smollm2):
    stuck = make(compiler, StructuredOutput(regex="ab(\U00050000|\U00060000)"))
    accept_text(stuck, smollm2, "ab")
    with pytest.raises(GrammarFailed, match="the grammar does not go on"):
        walk(stuck, smollm2, np.random.default_rng(0))


@pytest.mark.parametrize(
    "structured",
    [
        StructuredOutput(json_schema={"type": "strange"}),
        StructuredOutput(json_schema={"$ref": "#/nowhere"}),
        StructuredOutput(json_schema={"type": "array", "uniqueItems": True}),
        StructuredOutput(json_schema={"type": "number", "minimum": 2, "maximum": 1}),
        StructuredOutput(json_schema='{"not":' * 200 + "{}" + "}" * 200),
        StructuredOutput(regex="(" * 5000),
        StructuredOutput(regex="(?=a)b"),
        StructuredOutput(grammar="start: missing"),
        StructuredOutput(grammar="start: " + "(" * 60_000),
        StructuredOutput(grammar="root ::= ("),
        StructuredOutput(grammar="no grammar at all"),
    ],
    ids=lambda structured: structured.kind,
)
def test_a_bad_grammar_is_refused_with_the_reason(compiler, structured):
    pending = compiler.compile(structured)
    for _ in range(2):
        with pytest.raises(InvalidRequest) as refused:
            pending.result()
        assert refused.value.param == structured.kind
        assert 20 < len(str(refused.value)) < 400
        assert "\n" not in str(refused.value)


def test_deep_grammars_do_not_overflow_the_stack(compiler, smollm2):
    num_rules = 8000
    chain = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(num_rules)) + f'r{num_rules}: "a"'
    matcher = make(compiler, StructuredOutput(grammar=chain))
    accept_text(matcher, smollm2, "a")
    assert matcher.is_done
    definitions = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(4000)} | {"4000": {"const": 1}}
    matcher = make(compiler, StructuredOutput(json_schema={"$defs": definitions, "$ref": "#/$defs/0"}))
    accept_text(matcher, smollm2, "1")
    assert matcher.may_end


def test_many_choices(compiler, smollm2):
    matcher = make(compiler, StructuredOutput(choice=[f"choice {i}" for i in range(MAX_CHOICES)]))
    accept_text(matcher, smollm2, f"choice {MAX_CHOICES - 1}")
    assert matcher.is_done


def test_compiling_is_shared_bounded_and_never_waited_for(smollm2, monkeypatch):
    compiler = GrammarCompiler(
        smollm2, vocab_size=smollm2.vocab_size, end_token_ids=smollm2.eos_token_ids, time_limit_s=0
    )
    begun, go_on, compiled = threading.Event(), threading.Event(), []

    def slow(structured: StructuredOutput) -> str:
        begun.set()
        go_on.wait()
        compiled.append(structured)
        return usual(structured)

    usual = grammar._to_library
    monkeypatch.setattr(grammar, "_to_library", slow)
    monkeypatch.setattr(grammar, "MAX_CACHED_GRAMMARS", 2)
    pending = [compiler.compile(StructuredOutput(regex="ab")) for _ in range(3)]
    begun.wait()
    for wait_for_it in (pending[0].poll, pending[1].result):
        with pytest.raises(InvalidRequest, match="takes more than 0 s") as refused:
            wait_for_it()
        assert refused.value.param == "regex"
    go_on.set()
    pending[2]._compilation.future.result()
    for p in pending:
        accept_text(p.result(), smollm2, "ab")
    assert len(compiled) == 1
    for regex in ("x", "y", "ab", "y"):  # "ab" was forgotten, "y" was not
        compiler.compile(StructuredOutput(regex=regex))._compilation.future.result()
    assert [s.regex for s in compiled] == ["ab", "x", "y", "ab"]
    compiler.close()


def test_a_model_without_end_tokens_is_told_so(smollm2):
    compiler = GrammarCompiler(smollm2, vocab_size=100, end_token_ids=[100])
    with pytest.raises(InvalidRequest, match="no end token"):
        compiler.compile(StructuredOutput(regex="a"))


def test_masks_of_the_wrong_form_are_refused(compiler, smollm2):
    matcher = make(compiler, StructuredOutput(regex="a"))
    good = new_masks(smollm2, 2)
    for wrong in (good[0].view(np.int32), good[0][:-1], good[:1], np.repeat(good[0], 2)[::2]):
        with pytest.raises(ValueError, match="contiguous uint32"):
            matcher.fill_mask(wrong)
    with pytest.raises(ValueError):
        compiler.fill_masks([matcher], good)


def sentencepiece_tokenizer() -> Tokenizer:
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + list('▁helowrd{}":a') + ["he", "▁he", "▁hello"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *pieces],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, *[-float(i) for i in range(len(pieces))]],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(pieces) - 256)],
    }
    tokenizer = build_gguf_tokenizer(GGUFVocabulary(metadata))
    assert tokenizer.strips_leading_space  # because encoding puts a space in front
    return tokenizer


def hugging_face_tokenizer(directory: Path) -> Tokenizer:
    backend = Backend(models.BPE())
    backend.normalizer = normalizers.NFC()  # encoding changes the text
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["hello world, hello hell"], trainer)
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    return build_hf_tokenizer(directory, {})


@pytest.mark.parametrize("kind", ["sentencepiece", "hugging face"])
def test_texts_come_out_as_they_were_asked_for(kind, tmp_path):
    tokenizer = sentencepiece_tokenizer() if kind == "sentencepiece" else hugging_face_tokenizer(tmp_path)
    compiler = GrammarCompiler(tokenizer, vocab_size=400, end_token_ids=tokenizer.eos_token_ids)
    random = np.random.default_rng(1)
    for text in ("hello world", " hello", "ü\n{}", '{"a":"日"}', "e\u0301 \u212b", "<|end|></s>"):
        for structured in (StructuredOutput(choice=[text]), StructuredOutput(choice=[text, "hell"])):
            for _ in range(5):
                matcher, tokens = make(compiler, structured), []
                while not matcher.is_done:
                    mask = np.zeros(13, np.uint32)
                    matcher.fill_mask(mask)
                    tokens.append(int(random.choice(token_ids(mask))))
                    matcher.accept(tokens[-1])
                assert tokenizer.decode(tokens, continuation=True) in structured.choice
