"""Workloads: the same requests for the same seed, and what is made up of lengths."""

from array import array

import numpy as np
import pytest
from trace_texts import AZURE, MOONCAKE, NONE, VOCABULARY, written

from octavo.bench.workloads.contents import Vocabulary, stream_of
from octavo.bench.workloads.conversations import Conversations
from octavo.bench.workloads.item import digest, follow, prompt_as_json, prompt_len
from octavo.bench.workloads.lengths import Empirical, Fixed, Lognormal, Uniform, parse_lengths
from octavo.bench.workloads.synthetic import PrefixLevel, Synthetic, parse_prefix_tree
from octavo.bench.workloads.traces import read_azure, read_mooncake
from octavo.core.errors import InvalidConfig

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
