import pytest

from octavo.cli.options import parse_block_size
from octavo.core.config import EngineConfig
from octavo.core.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("16", 16),
        (" 8 ", 8),
        ("0-29=16", {"0-29": 16}),
        ("0-9=64,10-19=16,20-29=8", {"0-9": 64, "10-19": 16, "20-29": 8}),
        ("0-9=64, 10,12-29=16, 11=8", {"0-9": 64, "10,12-29": 16, "11": 8}),
    ],
)
def test_text_to_block_sizes(text, sizes):
    assert parse_block_size(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "x", "16,", "0-9=64,10-19", "0-9=", "0-9=a", "0-9=8,0-9=16", "-16", "1.5"]
)
def test_other_text_is_refused(text):
    with pytest.raises(InvalidConfig, match="write one number, or for example 0-9=64,10-29=16") as error:
        parse_block_size(text)
    assert repr(text) in str(error.value)


def test_settings_with_ranges_are_values():
    sizes = {"0-9": 64, "10-29": 16}
    config = EngineConfig(block_size=sizes)
    assert config == EngineConfig(block_size=dict(sizes))
    assert len({config, EngineConfig(block_size=sizes), EngineConfig(block_size=16)}) == 2
    assert config.block_sizes == sizes
    assert EngineConfig(block_size=24).block_sizes == 24
    sizes["0-9"] = 8
    assert config.block_sizes["0-9"] == 64
    config.block_sizes["0-9"] = 8
    assert config.block_sizes["0-9"] == 64


@pytest.mark.parametrize(
    ("block_size", "message"),
    [
        ({"0-9": 12}, r"block_size\['0-9'\]=12: must be a multiple of 8 from 8 to 128"),
        ({"0-9": 256}, "=256: must be"),
        ({"0-9": True}, "=True: must be an integer"),
        ({}, "names no layers"),
        (True, "block_size=True"),
        (None, "block_size=None"),
        ([16], r"block_size=\[16\]"),
        (0, "block_size=0"),
    ],
)
def test_bad_sizes_are_named(block_size, message):
    with pytest.raises(InvalidConfig, match=message):
        EngineConfig(block_size=block_size)
