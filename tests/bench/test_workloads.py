"""Workloads: the same requests for the same seed, and what files say."""

import json
from array import array

import numpy as np
import pytest

from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.report.facts import workload_fact
from octavo.bench.workloads.contents import Vocabulary, stream_of
from octavo.bench.workloads.conversations import Conversations
from octavo.bench.workloads.item import digest, follow, prompt_as_json, prompt_len
from octavo.bench.workloads.lengths import Empirical, Fixed, Lognormal, Uniform, parse_lengths
from octavo.bench.workloads.limits import TraceLimits
from octavo.bench.workloads.lines import MalformedLine
from octavo.bench.workloads.prompts_file import read_prompts
from octavo.bench.workloads.reuse import reusable_fraction
from octavo.bench.workloads.synthetic import PrefixLevel, Synthetic, parse_prefix_tree
from octavo.bench.workloads.traces import read_azure, read_mooncake
from octavo.core.errors import InvalidConfig, InvalidRequest

NONE = TraceLimits()
VOCABULARY = Vocabulary(10, 500)

# The first digits of what each workload of seed 3 hashes to: reports of other days stay comparable.
PINNED = {
    "random": "d98810a6",
    "tree": "b3202e61",
    "repetitive": "4f17e32c",
    "text": "b3336759",
    "chat": "fae74565",
    "mooncake": "f5d58603",
    "azure": "ddb1976d",
}

MOONCAKE = """\
{"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 3500, "input_length": 1200, "output_length": 6, "hash_ids": [7, 8, 9]}

{"timestamp": 2000, "input_length": 512, "output_length": 0, "hash_ids": [10]}
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:00,10,0
"""


def written(tmp_path, text):
    file = tmp_path / "lines"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def made(tmp_path, seed):
    """One workload of each kind."""
    (tmp_path / "m").write_text(MOONCAKE)
    (tmp_path / "a").write_text(AZURE)
    lengths = parse_lengths("x", "lognormal:30,0.7")
    return {
        "random": Synthetic(num_requests=9, input_len=lengths, output_len=Uniform(1, 9), seed=seed),
        "tree": Synthetic(num_requests=9, prefixes=parse_prefix_tree("20x2,10x3"), seed=seed),
        "repetitive": Synthetic(num_requests=3, input_len=Fixed(50), phrase_len=7, seed=seed),
        "text": Synthetic(num_requests=3, form="text", seed=seed),
        "chat": Conversations(num_sessions=3, turns=Uniform(1, 4), system_len=5, seed=seed),
        "mooncake": read_mooncake(tmp_path / "m", NONE, VOCABULARY, seed),
        "azure": read_azure(tmp_path / "a", NONE, VOCABULARY, seed),
    }


def test_a_seed_makes_the_same_requests(tmp_path):
    for name, workload in made(tmp_path, 3).items():
        again, other = made(tmp_path, 3)[name], made(tmp_path, 4)[name]
        assert workload.items(0) == again.items(0), name
        assert digest(workload.items(0)) == digest(again.items(0))
        assert digest(workload.items(0)) != digest(other.items(0)), name


def test_requests_are_what_they_were_when_this_was_written(tmp_path):
    found = {name: digest(workload.items(0))[:8] for name, workload in made(tmp_path, 3).items()}
    assert found == PINNED


def shape(workload, repeat, variant=0):
    return [
        (item.max_tokens, item.arrival_s, item.session, item.turn, prompt_len(item.prompt))
        for item in workload.items(repeat, variant)
    ]


def test_variants_differ_in_contents_alone(tmp_path):
    for name, workload in made(tmp_path, 3).items():
        seen = set()
        for repeat in (0, 1, -1):
            first, second = workload.items(repeat), workload.items(repeat, 1)
            assert shape(workload, repeat) == shape(workload, repeat, 1), name
            assert all(type(a.prompt) is type(b.prompt) for a, b in zip(first, second, strict=True))
            assert all(a.prompt != b.prompt for a, b in zip(first, second, strict=True)), name
            seen |= {digest(first), digest(second)}
        assert len(seen) == 6, name


def test_repeats_draw_lengths_and_paths_anew_where_they_are_made_up(tmp_path):
    for name, workload in made(tmp_path, 3).items():
        assert (shape(workload, 0) != shape(workload, 1)) == (name in ("random", "chat")), name
    tree = made(tmp_path, 3)["tree"]
    same = [[a == b for a in beginnings(tree, k) for b in beginnings(tree, k)] for k in range(4)]
    assert any(each != same[0] for each in same[1:])  # who shares with whom


def beginnings(tree, repeat):
    return [tuple(item.prompt[:30]) for item in tree.items(repeat)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("128", Fixed(128)),
        ("uniform:3,9", Uniform(3, 9)),
        ("lognormal:200,0.5", Lognormal(200, 0.5)),
    ],
)
def test_lengths_as_text(text, wanted):
    assert parse_lengths("x", text) == wanted
    assert str(wanted) == text


def test_lengths_of_a_file(tmp_path):
    file = written(tmp_path, "3\n\n5\n")
    lengths = parse_lengths("x", f"empirical:{file}")
    assert lengths == Empirical((3, 5))
    assert set(lengths.sample(np.random.default_rng(0), 100)) == {3, 5}
    file.write_bytes(b"\xef\xbb\xbf3\r\n5")  # as some editors begin a file, and end its lines
    assert parse_lengths("x", f"empirical:{file}") == Empirical((3, 5))
    for bad in (b"\xff", b"9" * 5000, b"16777217", b"1.5", b"3\x0b4"):
        file.write_bytes(b"3\n\n" + bad)
        with pytest.raises(InvalidConfig, match=r"lines:3: "):
            parse_lengths("x", f"empirical:{file}")
    file.write_text("3\n0\n")
    with pytest.raises(InvalidConfig, match=r"lines:2: '0' is no length"):
        parse_lengths("x", f"empirical:{file}")
    file.write_text("\n")
    with pytest.raises(InvalidConfig, match="no lengths"):
        parse_lengths("x", f"empirical:{file}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-3",
        "1.5",
        "uniform:3",
        "uniform:9,3",
        "lognormal:0,1",
        "lognormal:a,b",
        "zipf:2",
        "9" * 5000,
        "16777217",
        "uniform:1," + "9" * 5000,
        "lognormal:nan,1",
        "empirical:/no",
    ],
)
def test_lengths_that_are_none(text):
    with pytest.raises(InvalidConfig, match="x"):
        parse_lengths("x", text)


def test_distributions():
    rng = np.random.default_rng(0)
    uniform = Uniform(3, 6).sample(rng, 4000)
    assert set(uniform) == {3, 4, 5, 6}
    long = Lognormal(200, 0.5).sample(rng, 4000)
    assert np.median(long) == pytest.approx(200, rel=0.05)
    assert np.std(np.log(long)) == pytest.approx(0.5, rel=0.05)
    assert min(Lognormal(1, 3).sample(rng, 1000)) == 1


def test_prefix_trees():
    assert parse_prefix_tree("0") == ()
    assert parse_prefix_tree("1024") == (PrefixLevel(1024, 1),)
    assert parse_prefix_tree("512x1, 256x4") == (PrefixLevel(512, 1), PrefixLevel(256, 4))
    for wrong in ("x", "5xx", "5x0", "-1", "5,,6", "16777217", "5x16777217", "9" * 5000):
        with pytest.raises(InvalidConfig, match="prefix="):
            parse_prefix_tree(wrong)
    items = Synthetic(
        num_requests=60, input_len=Fixed(5), prefixes=parse_prefix_tree("20x2,10x3"), vocabulary=VOCABULARY
    ).items(0)
    assert {len(item.prompt) for item in items} == {35}
    roots = {bytes(item.prompt[:20]) for item in items}
    leaves = {bytes(item.prompt[:30]) for item in items}
    assert (len(roots), len(leaves)) == (2, 6)
    # Two nodes of different parents are different even if both are the first child.
    assert len({bytes(item.prompt[20:30]) for item in items}) == 6
    assert len({bytes(item.prompt[30:]) for item in items}) == 60


def test_repetitive_prompts_repeat():
    (item,) = Synthetic(num_requests=1, input_len=Fixed(20), phrase_len=6).items(0)
    assert len(item.prompt) == 20
    assert all(item.prompt[i] == item.prompt[i % 6] for i in range(20))
    assert len(set(item.prompt[:6])) > 1
    (text,) = Synthetic(num_requests=1, input_len=Fixed(20), phrase_len=6, form="text").items(0)
    words = text.prompt.split()
    assert words == (words[:6] * 4)[:20]


def test_token_ids_are_of_the_vocabulary():
    items = Synthetic(num_requests=20, vocabulary=VOCABULARY).items(0)
    ids = {t for item in items for t in item.prompt}
    assert min(ids) >= 10
    assert max(ids) < 500
    assert Vocabulary.of_size(100) == Vocabulary(0, 100)
    assert Vocabulary.of_size(49152) == Vocabulary(1000, 10000)


def test_random_streams_are_their_own():
    keys = [(0,), (0, 0), (0, 0, 0), (1,), (-1,), (0, -1), (-1, 0), (2,), (0, 1)]
    assert len({int(stream_of(*key).integers(1 << 60)) for key in keys}) == len(keys)


def test_conversations():
    items = Conversations(
        num_sessions=2, turns=Fixed(3), input_len=Fixed(4), system_len=6, pause_s=1.5
    ).items(0)
    assert [(i.session, i.turn, i.pause_s) for i in items] == [
        (s, t, 1.5 if t else 0.0) for s in range(2) for t in range(3)
    ]
    first, second, *_ = items
    assert [m["role"] for m in first.prompt] == ["system", "user"]
    assert first.prompt[0] == items[3].prompt[0]  # all sessions have the same system message
    assert [m["role"] for m in second.prompt] == ["user"]
    whole = follow(first.prompt, "yes", second.prompt)
    assert [m["role"] for m in whole] == ["system", "user", "assistant", "user"]
    assert whole[2] == {"role": "assistant", "content": "yes"}
    assert prompt_as_json(whole)[2] == {"role": "assistant", "content": "yes"}
    texts = Conversations(num_sessions=1, turns=Fixed(2), as_chat=False).items(0)
    assert follow(texts[0].prompt, "yes", texts[1].prompt) == f"{texts[0].prompt}yes{texts[1].prompt}"
    with pytest.raises(ValueError, match="conversation"):
        follow(array("i", [1]), "yes", array("i", [2]))


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


PROMPTS = """\
{"prompt": "Hello", "max_tokens": 3}
{"prompt": [1, 2, 3]}
{"messages": [{"role": "user", "content": "Hi"}]}
"""


@pytest.mark.parametrize(
    ("workload", "told"),
    [
        (Synthetic(num_requests=1, input_len=Fixed(1), output_len=Fixed(1)), "1 request, 1 token in, 1 out"),
        (
            Synthetic(num_requests=2, input_len=Uniform(1, 4), output_len=Fixed(2), phrase_len=1),
            "2 requests, uniform:1,4 tokens in, 2 out, repeating 1 token",
        ),
        (
            Conversations(num_sessions=1, turns=Fixed(1), input_len=Fixed(2), output_len=Fixed(1)),
            "1 conversation of 1 turn, 2 tokens in, 1 out",
        ),
        (
            Conversations(num_sessions=2000, turns=Fixed(2), input_len=Fixed(2), output_len=Fixed(1)),
            "2,000 conversations of 2 turns, 2 tokens in, 1 out",
        ),
    ],
)
def test_one_request_is_not_several(workload, told):
    assert workload_fact(workload.describe()) == told


def message(keys):
    """A line with a good message, and one that has these keys."""
    return f'{{"messages": [{{"role": "user", "content": "a"}}, {{{keys}}}]}}'


def test_prompts_of_a_file(tmp_path):
    found = read_prompts(written(tmp_path, PROMPTS), NONE, max_tokens=8)
    assert not found.has_arrivals
    items = found.items(0)
    assert [item.prompt for item in items] == [
        "Hello",
        array("i", [1, 2, 3]),
        ({"role": "user", "content": "Hi"},),
    ]
    assert [item.max_tokens for item in items] == [3, 8, 8]
    assert found.items(1) == items
    assert not found.can_differ


CALLED = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "é"}]},
    {"role": "user", "content": "What is the weather in Oslo?", "name": "ada"},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"at": "Oslo"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    {"role": "assistant", "content": "Rain.", "reasoning_content": "It said so.", "tool_calls": None},
    {"role": "assistant", "tool_calls": [{"function": {"name": "stop"}}]},
]


def test_messages_are_sent_as_the_file_has_them(tmp_path):
    found = read_prompts(written(tmp_path, json.dumps({"messages": CALLED})), NONE, max_tokens=8)
    (item,) = found.items(0)
    assert prompt_as_json(item.prompt) == CALLED
    (warm_up,) = found.items(-1)
    # 9 bytes are a word, 28 are 5; what has no text of its own stays.
    first, asked, *rest = warm_up.prompt
    assert [len(part["text"].split()) for part in first["content"]] == [1, 1]
    assert first["content"] != CALLED[0]["content"]
    assert (len(asked["content"].split()), asked["name"]) == (5, "ada")
    assert (rest[0], rest[3]) == (CALLED[2], CALLED[5])
    assert (rest[1]["tool_call_id"], rest[1]["content"] != "rain") == ("c1", True)


def test_to_warm_up_nothing_of_a_file_is_sent(tmp_path):
    texts = [
        {"prompt": "Once upon a time there was a"},  # 28 bytes: 5 words
        {"prompt": [5, 20_000, 7, 9], "max_tokens": 3},
        {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Why is the sky?"}]},
        {"prompt": "Ah"},
    ]
    found = read_prompts(written(tmp_path, "\n".join(map(json.dumps, texts))), NONE, max_tokens=8)
    items = found.items(-1)
    text, ids, chat, short = (item.prompt for item in items)
    assert (len(text.split()), len(ids), len(short.split())) == (5, 4, 1)
    assert all(1_000 <= token < 10_000 for token in ids)
    assert [message["role"] for message in chat] == ["system", "user"]
    assert (chat[0]["content"], len(chat[1]["content"].split())) == ("", 3)
    assert [item.max_tokens for item in items] == [8, 3, 8, 8]
    assert all(a.prompt != b.prompt for a, b in zip(items, found.items(0), strict=True))
    assert found.items(-1) == items != found.items(-2)


def test_made_up_ids_to_warm_up_are_below_the_greatest_of_the_file(tmp_path):
    found = read_prompts(written(tmp_path, json.dumps({"prompt": [3] * 64})), NONE, max_tokens=8)
    assert set(found.items(-1)[0].prompt) <= {0, 1, 2, 3}


@pytest.mark.parametrize("start", [0, 0.5, 100, 1e9])
def test_the_first_prompt_of_a_file_comes_at_once(tmp_path, start):
    lines = ({"prompt": name, "arrival_s": start + after} for name, after in (("b", 2), ("a", 0), ("c", 3)))
    file = written(tmp_path, "\n".join(map(json.dumps, lines)))
    items = read_prompts(file, TraceLimits(scale=2, limit=2), max_tokens=8).items(0)
    assert [(item.index, item.prompt, item.arrival_s) for item in items] == [(0, "a", 0.0), (1, "b", 4.0)]


def test_prompts_are_cut_if_they_are_token_ids(tmp_path):
    limits = TraceLimits(max_prompt_tokens=2)
    ids, *texts = (line + "\n" for line in sorted(PROMPTS.splitlines(), key=lambda line: "[1" not in line))
    (item,) = read_prompts(written(tmp_path, ids), limits, max_tokens=8).items(0)
    assert item.prompt == array("i", [1, 2])
    for text in texts:
        with pytest.raises(MalformedLine, match=r"lines:2: max_prompt_tokens=2 can cut .* this is text"):
            read_prompts(written(tmp_path, ids + text), limits, max_tokens=8)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{}", "must have either"),
        ('{"prompt": "a", "messages": []}', "must have either"),
        ('{"prompt": ""}', "prompt=''"),
        ('{"prompt": [1, "a"]}', "prompt="),
        ('{"prompt": [1, 99999999999]}', "prompt="),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens=0"),
        (
            '{"prompt": "a", "max_token": 9}',
            "unknown key 'max_token': the known ones are prompt, messages, max_tokens, arrival_s",
        ),
        ('{"prompt": "a", "temperature": 0}', "unknown key 'temperature'"),
        ('{"messages": []}', "messages=[]"),
        ('{"messages": {"role": "user"}}', "messages={'role': 'user'}: must be a list of messages"),
        ('{"messages": ["Hi"]}', "messages[0]='Hi': must be a JSON object"),
        (message('"role": "user"'), "messages[1].content: missing; only a message with tool_calls may do"),
        (message('"content": "a"'), "messages[1].role: expected a name such as 'user', got None"),
        (message('"role": 3, "content": "a"'), "messages[1].role: expected a name such as 'user', got 3"),
        (
            message('"rol": "user", "content": "a"'),
            "messages[1]: unknown key 'rol': the known ones are role, content, name, tool_calls, "
            "tool_call_id, refusal, reasoning_content",
        ),
        (message('"role": "user", "content": 3'), "messages[1].content: expected a text or a list of parts"),
        (message('"role": "user", "content": [{"type": "image_url"}]'), "got type 'image_url'; only text"),
        (message('"role": "user", "content": [{"type": "text"}]'), "messages[1].content[0].text: expected a"),
        (message('"role": "user", "content": "a", "name": 3'), "messages[1]: name=3: must be a text"),
        (message('"role": "tool", "content": "a", "tool_call_id": 3'), "tool_call_id=3: must be a text"),
        (message('"role": "assistant", "tool_calls": "f"'), "messages[1]: tool_calls='f': must be a list of"),
        (
            message('"role": "assistant", "tool_calls": [{"function": "f"}]'),
            "tool_calls=[{'function': 'f'}]: ",
        ),
        (message('"role": "assistant", "tool_calls": []'), "messages[1].content: missing"),
        (message('"role": "user", "content": "a", "name": ' + "[" * 100 + "]" * 100), "nested more than 64"),
        (
            message('"role": "user", "content": "a", "name": "\\ud800"'),
            "messages[1]: name='\\ud800': holds half a",
        ),
        (
            message('"role": "user", "content": [{"type": "text", "text": "\\udfff"}]'),
            "holds half a character",
        ),
        ('{"prompt": "a", "arrival_s": 1}', "in all lines or in none"),
        (
            '{"prompt": "a", "max_tokens": 16777217}',
            "max_tokens=16777217: must be an integer from 1 to 16,777,",
        ),
        ('{"prompt": "a\\ud800"}', "holds half a character"),
        ('{"messages": [{"role": "user", "content": "\\udfff"}]}', "holds half a character"),
    ],
)
def test_malformed_prompts(tmp_path, bad, message):
    with pytest.raises(MalformedLine, match="lines:4: ") as caught:
        read_prompts(written(tmp_path, PROMPTS + bad), NONE, max_tokens=8)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("is_chat", "line", "told"),
    [
        (False, 3, "messages, which only the chat endpoint takes: use --chat"),
        (True, 2, "token ids, which the chat endpoint does not take: leave --chat out"),
        (None, None, ""),
    ],
)
def test_prompts_must_suit_the_endpoint(tmp_path, is_chat, line, told):
    file = written(tmp_path, PROMPTS)
    if line is None:
        assert len(read_prompts(file, NONE, max_tokens=8, is_chat=is_chat).requests) == 3
        return
    with pytest.raises(MalformedLine, match=f"lines:{line}: {told}"):
        read_prompts(file, NONE, max_tokens=8, is_chat=is_chat)


def items(count):
    return Synthetic(num_requests=count, input_len=Fixed(1)).items(0)


@pytest.mark.parametrize(
    ("kind", "burstiness", "variance"), [("poisson", 9.0, 1.0), ("bursty", 4.0, 4.0), ("bursty", 0.25, 0.25)]
)
def test_arrivals_have_rate_and_variance(kind, burstiness, variance):
    plan = ArrivalPlan(kind=kind, rate=50, burstiness=burstiness, seed=1)
    times = plan.times(items(20_000))
    assert times == plan.times(items(20_000))
    assert times != ArrivalPlan(kind=kind, rate=50, burstiness=burstiness, seed=2).times(items(20_000))
    draws = [plan.of_repeat(repeat).times(items(9)) for repeat in (0, 1, 2)]
    assert draws[0] == times[:9]
    assert len({draw[1] for draw in draws}) == 3
    assert times[0] == 0.0
    gaps = np.diff(times)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(variance, rel=0.15)


def test_other_arrivals():
    assert ArrivalPlan(kind="bursty", rate=4, burstiness=0).times(items(3)) == [0, 0.25, 0.5]
    assert ArrivalPlan(kind="at-once").times(items(3)) == [0, 0, 0]
    with pytest.raises(InvalidConfig, match="does not say when"):
        ArrivalPlan(kind="trace").times(items(3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "poisson"},
        {"kind": "poisson", "rate": 0},
        {"kind": "bursty", "rate": 1, "burstiness": -1},
        {"kind": "closed"},
        {"kind": "closed", "concurrency": 0},
        {"kind": "sometimes"},
    ],
)
def test_arrivals_that_are_none(wrong):
    with pytest.raises(InvalidConfig):
        ArrivalPlan(**wrong)
