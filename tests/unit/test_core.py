import pytest

from octavo.core.config import EngineConfig
from octavo.core.errors import InvalidConfig, InvalidRequest, NotYetSupported, OctavoError
from octavo.core.sampling import SamplingParams
from octavo.core.units import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0: must be an integer, at least 1"),
        ({"max_tokens": "5"}, "max_tokens='5'"),
        ({"max_tokens": True}, "max_tokens=True"),
        ({"temperature": -0.1}, "temperature=-0.1: must be a number 0 or more"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"temperature": None}, "temperature=None"),
        ({"top_k": -2}, "top_k=-2"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"top_p": 0}, "top_p=0: must be a number above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p=1.01"),
        ({"min_p": -0.5}, "min_p=-0.5: must be a number from 0 to 1"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        ({"stop": ["a", ""]}, "stop="),
        ({"stop": 5}, "stop=5"),
        ({"stop_token_ids": [-1]}, "stop_token_ids="),
        ({"stop_token_ids": 3}, "stop_token_ids=3"),
        ({"ignore_eos": 1}, "ignore_eos=1"),
    ],
)
def test_bad_sampling_parameters_are_named(settings, message):
    with pytest.raises(InvalidRequest) as error:
        SamplingParams(**settings)
    assert message in str(error.value)
    assert error.value.param == next(iter(settings))


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 2},
        {"best_of": 4},
        {"logprobs": 0},
        {"prompt_logprobs": 1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": {5: 1.0}},
        {"guided_decoding": {"regex": "a+"}},
        {"structured_outputs": object()},
        {"use_beam_search": True},
        {"min_tokens": 1},
        {"bad_words": ["x"]},
        {"allowed_token_ids": [1]},
    ],
)
def test_planned_parameters_are_refused_by_name(settings):
    with pytest.raises(NotYetSupported, match=next(iter(settings))):
        SamplingParams(**settings)


def test_planned_parameters_that_ask_for_nothing_pass():
    params = SamplingParams(n=1, best_of=None, logprobs=None, presence_penalty=0.0, repetition_penalty=1.0)
    assert params == SamplingParams()


def test_unknown_parameters_are_type_errors():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1)


def test_stop_becomes_a_tuple():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop=None, stop_token_ids=None).stop == ()
    assert SamplingParams(top_k=-1).top_k == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 12}, "block_size=12: must be a multiple of 8"),
        ({"block_size": 256}, "block_size=256"),
        ({"block_size": "16"}, "block_size='16'"),
        ({"kv_dtype": "float64"}, "kv_dtype='float64': choose one of auto, bfloat16, float32"),
        ({"activations": "int4"}, "activations='int4'"),
        ({"backend": "tpu"}, "backend='tpu'"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"threads": 0}, "threads=0"),
        ({"kv_memory_bytes": 0}, "kv_memory_bytes=0"),
        ({"prefix_cache": "no"}, "prefix_cache='no'"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(InvalidConfig) as error:
        EngineConfig(**settings)
    assert message in str(error.value)
    assert not isinstance(error.value, NotYetSupported)


@pytest.mark.parametrize("settings", [{"kv_dtype": "int8"}, {"kv_dtype": "int4"}, {"backend": "cuda"}])
def test_planned_settings_are_refused_by_name(settings):
    with pytest.raises(NotYetSupported, match=next(iter(settings.values()))):
        EngineConfig(**settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GiB", 4 << 30),
        ("512 MB", 512_000_000),
        ("1.5k", 1536),
        (123, 123),
        ("77", 77),
        (" 2 gib ", 2 << 30),
    ],
)
def test_bytes_are_parsed(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "4 apples", "-1", "1e9", -5, True, None, 1.5])
def test_other_things_are_not_bytes(text):
    with pytest.raises(ValueError, match=r"bytes"):
        parse_bytes(text)


def test_bytes_are_shown():
    assert [format_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]


def test_every_error_is_an_octavo_error():
    for kind in (InvalidRequest, InvalidConfig, NotYetSupported):
        assert issubclass(kind, OctavoError)
        assert issubclass(kind, ValueError)
