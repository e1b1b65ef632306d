import numpy as np
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
        ({"temperature": -0.1}, "temperature=-0.1: must be a number from 0 to 1e6"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"temperature": None}, "temperature=None"),
        ({"temperature": 10**400}, "temperature=1000"),
        ({"temperature": 10**5000}, "temperature=<int>: must be a number from 0 to 1e6"),
        ({"temperature": 1.7e308}, "temperature=1.7e+308: must be a number from 0 to 1e6"),
        ({"temperature": True}, "temperature=True"),
        ({"temperature": np.bool_(True)}, "temperature="),
        ({"temperature": 1j}, "temperature=1j"),
        ({"temperature": np.array([1.0])}, "temperature=array"),
        ({"top_k": 2**31}, "top_k=2147483648: must be an integer, from 0 (off) to 2**31 - 1"),
        ({"top_k": 10**5000}, "top_k=<int>"),
        ({"top_k": np.uint64(2**63)}, "top_k="),
        ({"top_k": np.array([1, 2])}, "top_k=array"),
        ({"top_k": -2}, "top_k=-2"),
        ({"top_k": 1.5}, "top_k=1.5"),
        ({"top_p": 0}, "top_p=0: must be a number above 0 and at most 1"),
        ({"top_p": 1.01}, "top_p=1.01"),
        ({"min_p": -0.5}, "min_p=-0.5: must be a number from 0 to 1"),
        ({"top_p": 10**400}, "top_p=1000"),
        ({"min_p": 10**400}, "min_p=1000"),
        ({"seed": 1.0}, "seed=1.0"),
        ({"seed": True}, "seed=True"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**64}, "seed=18446744073709551616"),
        ({"stop": ["a", ""]}, "stop="),
        ({"stop": 5}, "stop=5"),
        ({"stop_token_ids": [-1]}, "stop_token_ids="),
        ({"stop_token_ids": 3}, "stop_token_ids=3"),
        ({"stop_token_ids": [True]}, "stop_token_ids=[True]"),
        ({"stop_token_ids": b"abc"}, "stop_token_ids=b'abc'"),
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
        {"n": True},
        {"n": np.array([1, 1])},
        {"min_tokens": False},
        {"use_beam_search": 0},
        {"logit_bias": np.array([1.0, 2.0])},
        {"bad_words": np.array([])},
        {"logprobs": 10**5000},
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


def test_numpy_scalars_become_numbers():
    params = SamplingParams(
        max_tokens=np.int32(5),
        temperature=np.float32(0.5),
        top_k=np.int64(7),
        seed=np.uint64(2**64 - 1),
        stop_token_ids=[np.int16(3)],
        n=np.int64(1),
    )
    assert params == SamplingParams(
        max_tokens=5, temperature=0.5, top_k=7, seed=2**64 - 1, stop_token_ids=[3]
    )
    values = (params.max_tokens, params.temperature, params.top_k, params.seed, params.stop_token_ids[0])
    assert [type(v) for v in values] == [int, float, int, int, int]


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
        ({"kv_dtype": "float64"}, "kv_dtype='float64': choose one of auto, bfloat16, float16, float32, int8"),
        ({"activations": "int4"}, "activations='int4'"),
        ({"backend": "tpu"}, "backend='tpu'"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"max_num_seqs": 65_537}, "max_num_seqs=65537: must be at most 65536"),
        ({"max_num_seqs": 10**12}, "max_num_seqs=1000000000000"),
        ({"max_step_tokens": 10**7}, "max_step_tokens=10000000: must be at most 65536"),
        ({"max_context": 1}, "max_context=1: must be an integer, at least 2"),
        ({"max_context": 10**5000}, "max_context=<int>: must be at most"),
        ({"block_size": 8 * 10**5000}, "block_size=<int>"),
        ({"threads": 10**5000}, "threads=<int>"),
        ({"kv_dtype": ["int8"]}, "kv_dtype=['int8']"),
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


@pytest.mark.parametrize("settings", [{"kv_dtype": "int4"}, {"kv_dtype": "fp8"}, {"backend": "cuda"}])
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
        ("3PiB", 3 << 50),
        ("2 pb", 2 * 10**15),
    ],
)
def test_bytes_are_parsed(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    "text", ["", "GiB", "4 apples", "-1", "1e9", -5, True, None, 1.5, "9" * 400 + "GiB", 2**63]
)
def test_other_things_are_not_bytes(text):
    with pytest.raises(ValueError, match=r"bytes"):
        parse_bytes(text)


def test_an_integer_too_long_to_print_is_not_bytes():
    with pytest.raises(ValueError, match=r"a number of bytes must be from 0 to .*, not <int>"):
        parse_bytes(10**5000)


def test_bytes_are_shown():
    assert [format_bytes(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40, 7 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 TiB",
        "7.0 PiB",
    ]


def test_every_error_is_an_octavo_error():
    for kind in (InvalidRequest, InvalidConfig, NotYetSupported):
        assert issubclass(kind, OctavoError)
        assert issubclass(kind, ValueError)
