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
        ({"ignore_eos": 1}, "ignore_eos=1: must be True or False"),
        ({"skip_special_tokens": None}, "skip_special_tokens=None: must be True or False"),
        ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output='yes': must be True or False"),
        ({"typical_p": 0}, "typical_p=0: must be a number above 0 and at most 1"),
        ({"typical_p": 1.5}, "typical_p=1.5"),
        ({"repetition_penalty": 0}, "repetition_penalty=0: must be a number above 0 and at most 1e6"),
        ({"repetition_penalty": -1.0}, "repetition_penalty=-1.0"),
        ({"repetition_penalty": 1e7}, "repetition_penalty=10000000.0"),
        ({"frequency_penalty": 2.1}, "frequency_penalty=2.1: must be a number from -2 to 2"),
        ({"frequency_penalty": None}, "frequency_penalty=None"),
        ({"presence_penalty": -2.01}, "presence_penalty=-2.01: must be a number from -2 to 2"),
        ({"presence_penalty": float("nan")}, "presence_penalty=nan"),
        ({"logit_bias": {5: 101}}, "logit_bias={5: 101}: must be a mapping from token ids"),
        ({"logit_bias": {5: float("nan")}}, "to numbers from -100 to 100"),
        ({"logit_bias": {-1: 1}}, "logit_bias={-1: 1}: must be a mapping from token ids, each 0 or more"),
        ({"logit_bias": {"-5": 1}}, "logit_bias={'-5': 1}"),
        ({"logit_bias": {"": 1}}, "logit_bias={'': 1}"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias={'9999"),
        ({"logit_bias": {5: "1"}}, "logit_bias={5: '1'}"),
        ({"logit_bias": {5: 10**400}}, "logit_bias={5: 1000"),
        ({"logit_bias": [(5, 1)]}, "logit_bias=[(5, 1)]"),
        ({"logit_bias": np.array([1.0, 2.0])}, "logit_bias=array"),
        ({"bad_words": [""]}, "bad_words=['']: must be a list of texts and lists of token ids, none of them"),
        ({"bad_words": ""}, "bad_words=''"),
        ({"bad_words": [[]]}, "bad_words=[[]]"),
        ({"bad_words": [5]}, "bad_words=[5]"),
        ({"bad_words": [[-1]]}, "bad_words=[[-1]]"),
        ({"bad_words": [b"x"]}, "bad_words=[b'x']"),
        ({"bad_words": 7}, "bad_words=7"),
        ({"bad_words": np.array([])}, "bad_words=array"),
        ({"allowed_token_ids": []}, "allowed_token_ids=[]: must be a list of one or more token ids, each 0"),
        ({"allowed_token_ids": [1, -1]}, "allowed_token_ids=[1, -1]"),
        ({"allowed_token_ids": [1.0]}, "allowed_token_ids=[1.0]"),
        ({"allowed_token_ids": 3}, "allowed_token_ids=3"),
        ({"min_tokens": -1}, "min_tokens=-1: must be an integer, at least 0"),
        ({"min_tokens": False}, "min_tokens=False"),
        ({"min_tokens": 65}, "min_tokens=65: must be at most max_tokens=64"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens=6: must be at most max_tokens=5"),
        ({"logprobs": -1}, "logprobs=-1: must be an integer, from 0 to 20, or None"),
        ({"logprobs": 21}, "logprobs=21: must be an integer, from 0 to 20, or None"),
        ({"logprobs": True}, "logprobs=True"),
        ({"logprobs": 10**5000}, "logprobs=<int>"),
        ({"prompt_logprobs": 21}, "prompt_logprobs=21: must be an integer, from 0 to 20, or None"),
        ({"prompt_logprobs": 1.0}, "prompt_logprobs=1.0"),
        ({"n": 0}, "n=0: must be an integer, from 1 to 64"),
        ({"n": 65}, "n=65"),
        ({"n": True}, "n=True"),
        ({"n": np.array([1, 1])}, "n=array"),
        ({"best_of": 0}, "best_of=0: must be an integer, from n=1 to 64, or None"),
        ({"best_of": 2, "n": 3}, "best_of=2: must be an integer, from n=3 to 64, or None"),
        ({"best_of": 65}, "best_of=65"),
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
        {"structured_outputs": object()},
        {"structured_outputs": {"regexp": "a"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"use_beam_search": 0},
        {"length_penalty": 5.5},
        {"early_stopping": "sometimes"},
        {"use_beam_search": True, "best_of": 33},
        {"use_beam_search": True, "stop": "x"},
    ],
)
def test_bad_searches_and_structures_are_refused(settings):
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**settings)
    assert refused.value.param is not None


def test_parameters_that_ask_for_nothing_equal_none():
    params = SamplingParams(n=1, best_of=None, logprobs=None, structured_outputs=None, use_beam_search=False)
    assert params == SamplingParams(bad_words=None, stop=None, stop_token_ids=None, logit_bias=None)
    assert params == SamplingParams()
    assert hash(SamplingParams(logit_bias={1: 2.0})) == hash(SamplingParams(logit_bias={1: 2}))


def test_limits_are_allowed():
    SamplingParams(n=64, best_of=64, temperature=0, logprobs=20, prompt_logprobs=0, min_tokens=64)
    SamplingParams(frequency_penalty=-2, presence_penalty=2, repetition_penalty=1e6, typical_p=1)
    SamplingParams(logit_bias={0: -100, 1: 100}, min_tokens=10**6, max_tokens=None)
    assert SamplingParams(logit_bias={"7": 1, "8": -1.5}).logit_bias == {7: 1.0, 8: -1.5}  # as in JSON


def test_numpy_scalars_become_numbers():
    params = SamplingParams(
        max_tokens=np.int32(5),
        temperature=np.float32(0.5),
        top_k=np.int64(7),
        seed=np.uint64(2**64 - 1),
        stop_token_ids=[np.int16(3)],
        n=np.int64(1),
        logit_bias={np.int64(4): np.float32(0.5)},
        bad_words=["x", [np.int32(6)]],
        allowed_token_ids=(np.uint8(9),),
        logprobs=np.int8(0),
    )
    assert params == SamplingParams(
        max_tokens=5,
        temperature=0.5,
        top_k=7,
        seed=2**64 - 1,
        stop_token_ids=[3],
        logit_bias={4: 0.5},
        bad_words=("x", (6,)),
        allowed_token_ids=[9],
        logprobs=0,
    )
    assert params.token_ids_by_name() == {
        "stop_token_ids": (3,),
        "allowed_token_ids": (9,),
        "logit_bias": (4,),
        "bad_words": (6,),
    }
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
