"""Public traces: what their files say, and what is wrong with a line."""

import pytest
from trace_texts import AZURE, MOONCAKE, NONE, VOCABULARY, written

from octavo.bench.report.facts import workload_fact
from octavo.bench.workloads.limits import TraceLimits
from octavo.bench.workloads.lines import MalformedLine
from octavo.bench.workloads.reuse import reusable_fraction
from octavo.bench.workloads.traces import read_azure, read_mooncake
from octavo.core.errors import InvalidConfig, InvalidRequest


def test_mooncake(tmp_path):
    trace = read_mooncake(written(tmp_path, MOONCAKE), NONE, VOCABULARY, 0)
    items = trace.items(0)
    assert trace.has_arrivals
    assert [item.arrival_s for item in items] == [0.0, 1.0, 2.5]  # sorted, the first at 0
    assert [len(item.prompt) for item in items] == [700, 512, 1200]
    assert [item.max_tokens for item in items] == [5, 1, 6]
    first, other, third = (item.prompt for item in items)
    assert first == third[:700]  # equal hash ids are equal tokens
    assert first[:512] != other
    assert third[512:1024] != third[:512]


def test_azure(tmp_path):
    items = read_azure(written(tmp_path, AZURE.replace("\n", "\r\n")), NONE, VOCABULARY, 0).items(0)
    assert [item.arrival_s for item in items] == pytest.approx([0.0, 4.314579, 13.31941])
    assert [(len(item.prompt), item.max_tokens) for item in items] == [(374, 44), (396, 109), (10, 1)]
    assert items[0].prompt[:10] != items[2].prompt


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2023-11-16 18:15:46", 0.0),
        ("2023-11-16T18:15:46Z", 0.0),
        ("2023-11-16 18:15:46.5", 0.5),
        ("2023-11-16 18:15:46.", 0.0),
        ("2023-11-16 18:15:46.6805900", 0.68059),
        ("2023-11-16 18:15:46.123456789012", 0.123456789012),
        ("2023-11-16 18:15:46.6805900+00:00", 0.68059),
        ("2023-11-16 20:15:47.25+0200", 1.25),
        ("2023-11-16 13:15:47 -05:00", 1.0),
        ("2023-11-17 00:00:00Z", 20654.0),
    ],
)
def test_times_of_azure(tmp_path, text, seconds):
    rows = f"\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,1\n{text},1,1\n"
    _, item = read_azure(written(tmp_path, rows), NONE, VOCABULARY, 0).items(0)
    assert item.arrival_s == pytest.approx(seconds, abs=1e-6)


def test_traces_are_cut_to_size(tmp_path):
    limits = TraceLimits(scale=2.0, limit=2, max_prompt_tokens=600, max_output_tokens=3)
    trace = read_mooncake(written(tmp_path, MOONCAKE), limits, VOCABULARY, 0)
    items = trace.items(0)
    assert [(item.arrival_s, len(item.prompt), item.max_tokens) for item in items] == [
        (0, 600, 3),
        (2, 512, 1),
    ]
    assert trace.describe()["num_prompts_cut"] == 1
    assert trace.describe()["reusable_fraction"] == 0  # the first two begin with 7 and with 10
    for wrong in ({"scale": 0}, {"limit": 0}, {"max_prompt_tokens": 0}, {"scale": float("nan")}):
        with pytest.raises(InvalidConfig):
            TraceLimits(**wrong)


@pytest.mark.parametrize(
    ("prompts", "reusable"),
    [
        ([], 0.0),
        ([(8, "ab")], 0.0),
        ([(8, "ab"), (8, "ab")], 8 / 16),
        ([(8, "ab"), (8, "cb")], 0.0),  # b is not what they begin with
        ([(8, "ab"), (8, "bb")], 0.0),
        ([(6, "ab"), (8, "ab")], 6 / 14),  # of the second b two tokens are new
        ([(8, "ab"), (6, "ab")], 6 / 14),
        ([(5, "ab"), (7, "ab"), (8, "ab")], (5 + 7) / 20),
        ([(4, "ab"), (8, "ab")], 4 / 12),  # cut to its first block
        ([(12, "abc"), (8, "ad"), (8, "ad")], (4 + 8) / 28),
    ],
)
def test_what_earlier_prompts_begin_with_too(prompts, reusable):
    named = [(length, [ord(name) for name in names]) for length, names in prompts]
    assert reusable_fraction(named, 4) == pytest.approx(reusable)


def test_cutting_prompts_changes_what_is_reusable(tmp_path):
    whole = read_mooncake(written(tmp_path, MOONCAKE), NONE, VOCABULARY, 0).describe()
    assert (whole["reusable_fraction"], whole["reusable_fraction_uncut"]) == (
        0.290216,
        0.290216,
    )  # 700 of 2412
    cut = read_mooncake(tmp_path / "lines", TraceLimits(max_prompt_tokens=512), VOCABULARY, 0).describe()
    assert (cut["reusable_fraction"], cut["reusable_fraction_uncut"]) == (0.333333, 0.290216)
    assert workload_fact(cut) == (
        "3 requests of lines, prompts up to 512 tokens (2 cut, so that 33.3 % of prompt tokens, and not "
        "29.0 %, can be had from earlier prompts)"
    )
    assert "cut" not in workload_fact(whole)
    azure = read_azure(written(tmp_path, AZURE), NONE, VOCABULARY, 0).describe()
    assert "reusable_fraction" not in azure


LINE = '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [7]}\n'


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{oops", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1]", "must be a JSON object"),
        (LINE.replace('"timestamp": 0', '"timestamp": "now"'), "timestamp='now'"),
        (LINE.replace('"timestamp": 0', '"timestamp": NaN'), "timestamp=nan"),
        (LINE.replace('"timestamp": 0', '"timestamp": 1e999'), "timestamp=inf"),
        (LINE.replace('"timestamp": 0', '"timestamp": -1'), "timestamp=-1"),
        (LINE.replace('"timestamp": 0', '"timestamp": true'), "timestamp=True"),
        (LINE.replace('"timestamp": 0', f'"timestamp": {10**400}'), "must be a number from 0 to 1e+18"),
        (LINE.replace('"timestamp": 0', f'"timestamp": {"9" * 5000}'), "an integer of thousands of digits"),
        (LINE.replace('"input_length": 9', f'"input_length": {10**400}'), "from 1 to 16,777,216"),
        (LINE.replace('"input_length": 9', '"input_length": true'), "input_length=True"),
        (LINE.replace('"output_length": 5', '"output_length": 16777217'), "output_length=16777217"),
        (LINE.replace('"timestamp": 0', '"timestamp": \0'), "is not JSON"),
        (LINE.replace('"input_length": 9', '"input_length": 9.5'), "input_length=9.5"),
        (LINE.replace('"input_length": 9', '"input_length": 0'), "input_length=0"),
        (
            LINE.replace('"input_length": 9', '"input_length": 513'),
            "1 hash_ids, fewer than input_length=513 needs: 2",
        ),
        (LINE.replace('"input_length": 9, ', ""), "has no 'input_length'"),
        (LINE.replace("[7]", "[7, 8]"), "2 hash_ids, more than input_length=9 needs: 1"),
        (LINE.replace("[7]", "[]"), "0 hash_ids, fewer than input_length=9 needs: 1"),
        (LINE.replace("[7]", "[true]"), "hash_ids"),
        (LINE.replace("[7]", "[-1]"), "hash_ids"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_malformed_lines_of_mooncake(tmp_path, bad, message):
    bad = bad.encode() if isinstance(bad, str) else bad
    file = written(tmp_path, LINE.encode() + b"\n" + bad + b"\n" + LINE.encode())
    with pytest.raises(MalformedLine, match="lines:3: ") as caught:
        read_mooncake(file, NONE, VOCABULARY, 0)
    assert message in str(caught.value)
    assert caught.value.line == 3


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("2023-11-16 18:15:46,374", "2 values for 3 columns"),
        ("yesterday,374,44", "TIMESTAMP='yesterday'"),
        ("2023-11-16 18:15:46.x,374,44", "TIMESTAMP"),
        ("2023-11-16 18:15:46,many,44", "ContextTokens='many'"),
        ("2023-11-16 18:15:46,0,44", "ContextTokens=0"),
        ("2023-11-16 18:15:46,5,-1", "GeneratedTokens='-1'"),
        (
            "2023-11-16 18:15:46,5,16777217",
            "GeneratedTokens=16777217: must be an integer from 0 to 16,777,216",
        ),
        (f"2023-11-16 18:15:46,{'9' * 5000},1", "ContextTokens='999"),
        (f"2023-11-16 18:15:46,{'9' * 200_000},1", "is not CSV: field larger than field limit"),
        ("2023-11-16 18:15:46,5\r6,1", "is not CSV"),
        ("2023-11-16 18:15:46,\0,1", "ContextTokens="),
        ("2023-11-16 18:15:46+25:00,5,1", "TIMESTAMP"),
        ("2023-11-16 18:15:46.١,5,1", "TIMESTAMP"),
        ("2023-02-30 18:15:46,5,1", "TIMESTAMP"),
        ("NaN,5,1", "TIMESTAMP"),
    ],
)
def test_malformed_lines_of_azure(tmp_path, bad, message):
    file = written(tmp_path, AZURE.replace("2023-11-16 18:16:00,10,0", bad))
    with pytest.raises(MalformedLine, match="lines:4: ") as caught:
        read_azure(file, NONE, VOCABULARY, 0)
    assert message in str(caught.value)


def test_files_that_are_no_traces(tmp_path):
    with pytest.raises(MalformedLine, match="lines:1: the header has no column 'TIMESTAMP'"):
        read_azure(written(tmp_path, "a,b\n1,2\n"), NONE, VOCABULARY, 0)
    for read in (read_azure, read_mooncake):
        with pytest.raises(InvalidRequest, match="has no requests"):
            read(written(tmp_path, ""), NONE, VOCABULARY, 0)
        with pytest.raises(InvalidRequest, match="cannot read"):
            read(tmp_path / "none", NONE, VOCABULARY, 0)
