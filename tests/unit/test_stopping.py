from hypothesis import example, given
from hypothesis import strategies as st

from octavo.engine.stopping import StopChecker

texts = st.text(alphabet="abc", max_size=30)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


def cut_by_characters(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule, naively: after each character, does the text so far end with a stop? Cut the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(texts, stops, st.lists(st.integers(1, 6), max_size=30))
@example("abcab", ["cab", "b"], [5])
@example("bca", ["bca", "c"], [3])
@example("aab", ["ab"], [1, 1, 1])
def test_result_does_not_depend_on_the_cuts_and_nothing_leaks(text, stops, sizes):
    expected, stopped = cut_by_characters(text, stops)
    checker = StopChecker(stops)
    out, rest = "", text
    for size in [*sizes, len(text)]:
        piece, rest = rest[:size], rest[size:]
        out += checker.push(piece)
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
