from hypothesis import example, given
from hypothesis import strategies as st

from octavo.engine.stopping import StopChecker

texts = st.text(alphabet="abc", max_size=30)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


def cut_by_characters(
    text: str, stops: list[str], *, num_exempt: int = 0, include_stop: bool = False
) -> tuple[str, bool]:
    """The rule, naively: after each character, does the text so far end with a stop? Cut the longest."""
    for end in range(num_exempt + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[:end] if include_stop else text[: end - max(map(len, ending))], True
    return text, False


@given(texts, stops, st.lists(st.integers(1, 6), max_size=30), st.integers(0, 8), st.booleans())
@example("abcab", ["cab", "b"], [5], 0, False)
@example("bca", ["bca", "c"], [3], 0, False)
@example("aab", ["ab"], [1, 1, 1], 0, True)
@example("aab", ["aab", "a"], [1, 1, 1], 2, False)
@example("ababc", ["abc", "ab"], [2, 2, 1], 1, True)
def test_result_does_not_depend_on_the_cuts_and_nothing_leaks(text, stops, sizes, num_pushes, include_stop):
    """The first ``num_pushes`` pieces are exempt: a stop that is complete in them does not count."""
    num_exempt = min(len(text), sum([*sizes, len(text)][:num_pushes]))
    expected, stopped = cut_by_characters(text, stops, num_exempt=num_exempt, include_stop=include_stop)
    checker = StopChecker(stops, include_stop=include_stop)
    out, rest = "", text
    for i, size in enumerate([*sizes, len(text)]):
        piece, rest = rest[:size], rest[size:]
        out += checker.push(piece, exempt=i < num_pushes)
        assert expected.startswith(out)
        if not checker.stopped:
            seen = text[: len(text) - len(rest)]
            undecided = seen[len(out) :]
            # Nothing is held back without reason: what is held begins a stop.
            assert not undecided or any(stop.startswith(undecided) for stop in stops)
    out += checker.flush()
    assert (out, checker.stopped) == (expected, stopped)


def test_nothing_comes_after_a_stop():
    checker = StopChecker(["END"])
    assert checker.push("one EN") == "one "
    assert checker.push("D two") == ""
    assert checker.stopped
    assert checker.push("three") == ""
    assert checker.flush() == ""
