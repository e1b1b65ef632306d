"""The tokenizer's own rules: BOS, special tokens, bytes, end tokens, and the files of a model directory."""

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_helpers import SAMPLES, differing, known_text, text_with_specials, train_byte_level, write_json
from tokenizers import decoders, processors
from transformers import AutoTokenizer

from octavo.core.errors import CorruptModel, InvalidRequest, UnsupportedModel
from octavo.text.end_tokens import find_end_tokens
from octavo.text.loading import load_text
from octavo.text.pieces import BYTE_OF, CHAR_OF, byte_level_bytes, marked_bytes, sentencepiece_bytes
from octavo.text.pretokenizers import LLAMA3
from octavo.text.tokenizer import Tokenizer
from octavo.weights.checkpoint import Checkpoint

BOS, EOS, TURN = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"


def write_tokenizer(directory: Path, *, bos_processor: bool = True, **config: object) -> None:
    """A model directory in the manner of Llama 3, with a small vocabulary."""
    tokenizer = train_byte_level([LLAMA3], special=[BOS, EOS, TURN], plain=["<think>"], ignore_merges=True)
    if bos_processor:
        ids = [(BOS, tokenizer.token_to_id(BOS))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=ids)
    tokenizer.save(str(directory / "tokenizer.json"))
    defaults = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    write_json(directory / "tokenizer_config.json", defaults | config)


def load(directory: Path, **model_config: object) -> Tokenizer:
    return load_text(Checkpoint(directory, "safetensors", model_config, {}))[0]


@pytest.fixture(scope="module")
def llama3_directory(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("llama3")
    write_tokenizer(directory)
    return directory


@pytest.fixture(scope="module")
def llama3(llama3_directory) -> Tokenizer:
    return load(llama3_directory)


@pytest.fixture(scope="module")
def llama3_transformers(llama3_directory):
    return AutoTokenizer.from_pretrained(llama3_directory)


class TestEncode:
    def test_equals_transformers_on_samples(self, llama3, llama3_transformers):
        assert differing(SAMPLES, llama3.encode, llama3_transformers.encode) == []

    @given(text=text_with_specials)
    def test_equals_transformers(self, llama3, llama3_transformers, text):
        plain = llama3_transformers.encode(text, add_special_tokens=False)
        assert llama3.encode(text, add_bos=False) == plain
        if not text.startswith(BOS):
            assert llama3.encode(text) == llama3_transformers.encode(text)

    @given(text=text_with_specials)
    def test_special_tokens_as_plain_text(self, llama3, llama3_transformers, text):
        theirs = llama3_transformers.encode(text, add_special_tokens=False, split_special_tokens=True)
        ours = llama3.encode(text, add_bos=False, parse_special=False)
        assert ours == theirs
        assert not any(map(llama3.is_special, ours))
        assert llama3.decode(ours) == text

    def test_exactly_one_bos(self, llama3):
        bos = llama3.bos_token_id
        assert bos is not None
        assert llama3.encode("a") == [bos, *llama3.encode("a", add_bos=False)]
        assert llama3.encode(BOS + "a") == llama3.encode("a")
        assert llama3.encode(BOS + "a", add_bos=False) == llama3.encode("a")
        assert llama3.encode("a" + BOS).count(bos) == 2
        assert llama3.encode("") == llama3.encode(BOS) == [bos]
        assert llama3.encode("", add_bos=False) == []
        assert llama3.encode(BOS, parse_special=False).count(bos) == 1

    @pytest.mark.parametrize(
        ("text", "says"), [("a\ud800b", "character 1.*U\\+D800"), (b"a", "bytes"), (None, "None")]
    )
    def test_what_is_not_text_is_refused(self, llama3, text, says):
        with pytest.raises(InvalidRequest, match=says) as caught:
            llama3.encode(text)
        assert caught.value.param == "prompt"

    def test_threads_do_not_disturb_each_other(self, llama3):
        expected = {special: llama3.encode(TURN, parse_special=special) for special in (True, False)}
        assert expected[True] != expected[False]
        wrong = []

        def work(special: bool) -> None:
            for _ in range(300):
                if llama3.encode(TURN, parse_special=special) != expected[special]:
                    wrong.append(special)

        threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestBytes:
    @given(text=known_text)
    def test_tokens_spell_the_text(self, llama3, text):
        ids = llama3.encode(text, add_bos=False, parse_special=False)
        assert b"".join(map(llama3.token_bytes, ids)) == text.encode()

    @given(ids=st.lists(st.integers(0, 750), max_size=30))
    def test_decode_is_the_utf8_of_the_bytes(self, llama3, llama3_transformers, ids):
        text = b"".join(map(llama3.token_bytes, ids)).decode(errors="replace")
        assert llama3.decode(ids, skip_special=False) == text
        assert llama3.decode(ids) == llama3_transformers.decode(ids, skip_special_tokens=True)

    def test_ids_without_a_token(self, llama3):
        for id_ in (-1, llama3.vocab_size, 10**12):
            assert llama3.token_bytes(id_) == b""
        assert llama3.decode([-1, llama3.vocab_size]) == ""

    def test_byte_alphabet(self):
        assert {char: bytes([byte]) for char, byte in BYTE_OF.items()} == {
            c: byte_level_bytes(c) for c in BYTE_OF
        }
        assert sorted(CHAR_OF) == list(range(256))
        assert byte_level_bytes("Ġthe") == b" the"
        assert byte_level_bytes("a b") == b"a b"  # the space is not in the alphabet
        assert sentencepiece_bytes("<0xE4>") == b"\xe4"
        assert sentencepiece_bytes("\u2581a\u2581") == b" a "
        assert marked_bytes("<0xE4>") == b"<0xE4>"


class TestDirectory:
    def test_roles(self, llama3):
        ids = [llama3.encode(text, add_bos=False) for text in (BOS, EOS, TURN)]
        assert [llama3.bos_token_id] == ids[0]
        assert llama3.eos_token_ids == tuple(ids[1])
        assert llama3.vocab_size == 704

    @pytest.mark.parametrize("add_bos_token", [None, True, False])
    @pytest.mark.parametrize("bos_processor", [True, False])
    def test_tokenizer_json_says_who_gets_bos(self, tmp_path, bos_processor, add_bos_token):
        write_tokenizer(tmp_path, bos_processor=bos_processor, add_bos_token=add_bos_token)
        tokenizer = load(tmp_path)
        assert tokenizer.adds_bos == bos_processor
        assert tokenizer.encode("a b") == AutoTokenizer.from_pretrained(tmp_path).encode("a b")

    def test_end_tokens(self, tmp_path):
        write_tokenizer(tmp_path)
        assert load(tmp_path, eos_token_id=[77, 78]).eos_token_ids == (701, 77, 78)
        write_json(tmp_path / "generation_config.json", {"eos_token_id": [5, 701]})
        assert load(tmp_path, eos_token_id=77).eos_token_ids == (701, 5)
        (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}<|eot_id|>")
        assert load(tmp_path).eos_token_ids == (701, 5, 702)
        assert load(tmp_path).is_special(702)

    def test_roles_from_the_map_and_from_objects(self, tmp_path):
        write_tokenizer(tmp_path, bos_token={"content": TURN, "lstrip": False}, eos_token=None)
        write_json(tmp_path / "special_tokens_map.json", {"eos_token": {"content": EOS}, "bos_token": EOS})
        tokenizer = load(tmp_path)
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (702, (701,))

    def test_tokens_that_only_the_config_knows(self, tmp_path):
        entry = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
        added = {
            "704": {"content": "<a>", "special": True, **entry},
            "705": {"content": "<b>", "special": False, **entry},
        }
        write_tokenizer(tmp_path, added_tokens_decoder=added)
        tokenizer = load(tmp_path)
        ids = tokenizer.encode("<a>x<b>", add_bos=False)
        assert (ids[0], ids[-1], tokenizer.vocab_size) == (704, 705, 706)
        assert tokenizer.decode(ids) == "x<b>"
        write_tokenizer(tmp_path, added_tokens_decoder={"999": added["704"]})
        with pytest.raises(CorruptModel, match="'<a>' the id 999"):
            load(tmp_path)

    def test_truncation_and_padding_are_not_for_prompts(self, tmp_path):
        write_tokenizer(tmp_path)
        rules = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
        rules["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        write_json(tmp_path / "tokenizer.json", rules)
        assert len(load(tmp_path).encode("a b c d e f g h")) > 8

    def test_broken_files_are_named(self, tmp_path):
        with pytest.raises(UnsupportedModel, match=r"no tokenizer\.json"):
            load(tmp_path)
        write_tokenizer(tmp_path)
        (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
        with pytest.raises(CorruptModel, match=r"tokenizer_config\.json"):
            load(tmp_path)
        write_tokenizer(tmp_path)
        whole = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
        (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
        with pytest.raises(CorruptModel, match=r"tokenizer\.json"):
            load(tmp_path)

    @pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.CTC()])
    def test_unknown_decoder_is_named(self, tmp_path, decoder):
        tokenizer = train_byte_level([LLAMA3], vocab_size=300)
        if decoder is not None:
            tokenizer.decoder = decoder
            tokenizer.save(str(tmp_path / "tokenizer.json"))
        else:
            write_json(tmp_path / "tokenizer.json", json.loads(tokenizer.to_str()) | {"decoder": None})
        with pytest.raises(UnsupportedModel, match=type(decoder).__name__.removesuffix("Type")):
            load(tmp_path)

    def test_template_files_and_names(self, tmp_path):
        write_tokenizer(tmp_path)
        checkpoint = Checkpoint(tmp_path, "safetensors", {}, {})
        assert load_text(checkpoint)[1] is None
        named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
        write_tokenizer(tmp_path, chat_template=named)
        template = load_text(checkpoint)[1]
        assert template is not None
        assert template.names == ("default", "tool_use")
        (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}new")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("r")
        template = load_text(checkpoint)[1]
        assert template is not None
        message = {"role": "user", "content": "x"}
        assert sorted(template.names) == ["default", "rag", "tool_use"]
        assert template.render([message]) == BOS + "new"
        assert template.render([message], name="rag") == "r"
        write_tokenizer(tmp_path, chat_template=[{"name": "default"}])
        with pytest.raises(CorruptModel, match="chat_template"):
            load_text(checkpoint)


def test_end_token_rules():
    ids = {"<|im_end|>": 5, "<|endoftext|>": 6, "<|end|>": 7}
    assert find_end_tokens([2, None, 2], ids.get, []) == (2, 6)
    assert find_end_tokens([6], ids.get, ["<|im_start|>x<|im_end|>"]) == (6, 5)
    assert find_end_tokens([], ids.get, ["a", "{{ '<|end|>' }}"]) == (7, 6)
    assert find_end_tokens([3], {}.get, ["<|im_end|>"]) == (3,)
