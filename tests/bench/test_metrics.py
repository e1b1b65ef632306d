"""Every metric against values computed by hand."""

import statistics
from array import array

import pytest

from octavo.bench.load.exchange import INTERRUPTED, TIMEOUT, Exchange
from octavo.bench.load.generator import LoadResult, Record
from octavo.bench.metrics.pooled import quantiles, timeline
from octavo.bench.metrics.reading import is_tpot_late, num_late_gaps, too_many_late
from octavo.bench.metrics.slo import Slo, parse_slo
from octavo.bench.metrics.spread import interval, percentile, spread, t_quantile
from octavo.bench.metrics.summary import combine, request_as_dict, summarize
from octavo.bench.metrics.timings import timings_of
from octavo.bench.metrics.traffic import due_per_s, most_in_flight
from octavo.bench.metrics.warnings import same_prompts, warnings_of
from octavo.bench.report.numbers import interval_note
from octavo.bench.workloads.item import WorkItem
from octavo.core.errors import InvalidConfig


def record(due, chunks, *, index=0, tokens=None, late=0.0, max_tokens=None, **fields):
    """A request, and the moments of its chunks, which have a token each if nothing else is told."""
    tokens = len(chunks) if tokens is None else tokens
    exchange = Exchange(
        sent_s=due + late,
        chunk_s=list(chunks),
        chunk_chars=[4] * len(chunks),
        finish_s=chunks[-1] if chunks else None,
        finish_had_output=True,
        closed_s=chunks[-1] if chunks else due,
        finish_reason="length",
        prompt_tokens=10,
        output_tokens=tokens,
        cached_tokens=4,
    )
    for name, value in fields.items():
        setattr(exchange, name, value)
    item = WorkItem(index=index, prompt=array("i", [1] * 10), max_tokens=max_tokens or tokens or 1)
    return Record(item, due, exchange)


def failed(due, failure, *, index=0, detail=""):
    exchange = Exchange(sent_s=due, closed_s=due + 1)
    exchange.fail(failure, detail)
    return Record(WorkItem(index=index, prompt="x", max_tokens=5), due, exchange)


def test_latencies_count_from_when_a_request_was_due():
    t = timings_of(record(100.0, [100.5, 100.6, 100.9], late=0.2))
    assert t.lateness_s == pytest.approx(0.2)
    assert t.ttft_s == pytest.approx(0.5)  # not 0.3
    assert t.e2e_s == pytest.approx(0.9)
    assert t.tpot_s == pytest.approx(0.4 / 2)
    assert t.itl_s == pytest.approx((0.1, 0.3))
    assert (t.num_tokens, t.num_chunks, t.misses_tokens) == (3, 3, False)


def test_one_token_has_no_time_per_token():
    t = timings_of(record(0.0, [0.5]))
    assert t.ttft_s == t.e2e_s == 0.5
    assert t.tpot_s is None
    assert t.itl_s == ()


def test_chunks_of_several_tokens():
    # 12 tokens in 3 chunks of the same text: 8 came after the first; gaps are those between chunks.
    t = timings_of(record(0.0, [0.5, 0.7, 0.9], tokens=12))
    assert t.tpot_s == pytest.approx(0.4 / 8)
    assert t.itl_s == pytest.approx((0.2, 0.2))
    assert t.misses_tokens
    # Where the tokens of the first chunk are known, they are not guessed.
    t = timings_of(record(0.0, [0.5, 0.7, 0.9], tokens=12, chunk_tokens=[2, 5, 5]))
    assert t.tpot_s == pytest.approx(0.4 / 10)


def test_what_is_kept_back_makes_no_server_faster():
    """20 tokens at 0.1 s each, of which the first ten are sent together."""
    plain = timings_of(record(0.0, [0.1 * i for i in range(1, 21)]))
    kept_back = [1.0, *(0.1 * i for i in range(11, 21))]
    first = timings_of(record(0.0, kept_back, tokens=20, chunk_chars=[40] + [4] * 10))
    assert plain.tpot_s == pytest.approx(0.1)
    assert first.tpot_s == pytest.approx(0.1)
    # The same in pieces of their own that are read together.
    together = timings_of(record(0.0, [1.0] * 9 + kept_back))
    assert together.tpot_s == pytest.approx(0.1)


def test_a_first_chunk_has_a_token_however_short_it_is():
    # 8 tokens in 4 chunks: by characters the first would have 8 / 31 of one.
    t = timings_of(record(0.0, [0.5, 0.6, 0.7, 0.8], tokens=8, chunk_chars=[1, 10, 10, 10]))
    assert t.tpot_s == pytest.approx(0.3 / 7)


def test_when_all_comes_at_once_nothing_is_known_of_a_token():
    for chunks in ([0.5], [0.5] * 4):
        t = timings_of(record(0.0, chunks, tokens=4))
        assert (t.tpot_s, t.hides_tpot) == (None, True)
        assert not Slo(tpot_s=9.0).is_kept(t)
        assert Slo(e2e_s=9.0).is_kept(t)
    # One of many that is in no chunk of its own does not change that.
    assert timings_of(record(0.0, [0.5] * 20, tokens=21)).tpot_s is None
    # The end may come later without telling more.
    t = timings_of(record(0.0, [0.5], tokens=64, finish_s=0.9, finish_had_output=False))
    assert (t.tpot_s, t.e2e_s) == (None, 0.9)
    t = timings_of(record(0.0, [0.5], tokens=4, chunk_tokens=[4]))
    assert t.hides_tpot
    assert not timings_of(record(0.0, [0.5])).hides_tpot
    kept = summarize(LoadResult([record(0.0, [0.5], tokens=4)], 0.0, 1.0, 0), Slo(tpot_s=9.0))
    assert (kept["goodput"]["kept"], kept["counts"]["tpot_unknown"], kept["tpot_s"]) == (0, 1, None)


def test_tokens_without_text_may_come_until_the_end():
    """10 tokens with text, 10 end tokens without: the last is there with the piece that says so."""
    chunks = [0.1 * i for i in range(1, 11)]
    t = timings_of(record(0.0, chunks, tokens=20, finish_s=2.0, finish_had_output=False))
    assert t.e2e_s == pytest.approx(2.0)
    assert t.tpot_s == pytest.approx(1.9 / 18)  # two of the twenty are taken to have come first


def test_the_last_token_may_have_no_text():
    whole = record(0.0, [0.5, 0.6], tokens=3, finish_s=0.7, finish_had_output=False)
    t = timings_of(whole)
    assert t.e2e_s == pytest.approx(0.7)
    assert t.tpot_s == pytest.approx(0.1)
    assert t.itl_s == pytest.approx((0.1, 0.1))
    assert not t.misses_tokens
    # If no token is missing, the piece with the reason was none, however late it came.
    t = timings_of(record(0.0, [0.5, 0.6], tokens=2, finish_s=0.9, finish_had_output=False))
    assert t.e2e_s == pytest.approx(0.6)
    # An answer of a single end token has no chunk, but a first token.
    t = timings_of(record(0.0, [], tokens=1, finish_s=0.3))
    assert t.ttft_s == 0.3


def test_percentiles():
    values = [1.0, 2.0, 3.0, 4.0]
    assert percentile(values, 0) == 1.0
    assert percentile(values, 50) == 2.5
    assert percentile(values, 90) == pytest.approx(3.7)
    assert percentile(values, 100) == 4.0
    assert percentile([7.0], 99) == 7.0
    found = spread([4.0, 1.0, 3.0, 2.0])
    assert found == {
        "mean": 2.5,
        "p50": 2.5,
        "p90": pytest.approx(3.7),
        "p95": pytest.approx(3.85),
        "p99": pytest.approx(3.97),
        "max": 4.0,
        "count": 4,
    }
    assert spread([]) is None


def test_confidence_intervals():
    found = interval([10.0, 12.0, 14.0])
    half = 4.3027 * 2.0 / 3**0.5  # t with 2 degrees of freedom, standard deviation 2
    assert found == {
        "mean": 12.0,
        "low": pytest.approx(12 - half),
        "high": pytest.approx(12 + half),
        "repeats": 3,
    }
    assert interval([5.0]) == {"mean": 5.0, "low": None, "high": None, "repeats": 1}


@pytest.mark.parametrize(
    ("freedom", "published"), [(1, 12.706), (9, 2.262), (30, 2.042), (60, 2.0003), (120, 1.9799)]
)
def test_quantiles_of_student(freedom, published):
    assert t_quantile(freedom) == pytest.approx(published, abs=1e-3)


def result():
    records = [
        record(0.0, [0.5, 0.6, 0.7], index=0),
        record(1.0, [1.2, 1.3], index=1, max_tokens=9),
        failed(1.5, "http 429", index=2, detail="too many"),
        failed(1.6, "http 429", index=3, detail="still too many"),
        failed(1.7, TIMEOUT, index=4),
    ]
    return LoadResult(records, start_s=0.0, end_s=2.0, num_not_sent=0)


def test_summary_of_a_run():
    found = summarize(result(), Slo(ttft_s=0.3))
    assert found["complete"] is True
    assert found["requests"] == {"total": 5, "ok": 2, "failed": 3, "not_sent": 0}
    assert found["failures"] == {
        "http 429": {"count": 2, "example": "too many"},
        TIMEOUT: {"count": 1, "example": ""},
    }
    assert found["duration_s"] == 2.0
    assert found["requests_per_s"] == 1.0
    assert (found["prompt_tokens"], found["output_tokens"], found["cached_tokens"]) == (20, 5, 8)
    assert found["prompt_tokens_per_s"] == 10.0
    assert found["output_tokens_per_s"] == 2.5
    assert found["ttft_s"]["mean"] == pytest.approx(0.35)
    assert found["tpot_s"]["mean"] == pytest.approx(0.1)
    assert found["itl_s"]["count"] == 3
    # Of five that were due one kept the objective; those that failed did not.
    assert found["goodput"] == {"kept": 1, "fraction": 0.2, "requests_per_s": 0.5}
    assert found["counts"] == {
        "tokens_per_chunk": 1.0,
        "without_usage": 0,
        "chunks_differ": 0,
        "tpot_unknown": 0,
        "tpot_read_late": 0,
        "gaps_read_late": 0,
        "resent": 0,
        "shorter_than_asked": 1,
        "longer_than_asked": 0,
    }
    # Three gaps of 1.0, 0.5, 0.1 and 0.1 seconds between the five that were due.
    assert found["requests_due_per_s"] == pytest.approx(4 / 1.7)
    # The first is over when the second comes; the three that failed were under way for a second each.
    assert found["most_in_flight"] == 3
    # One timed out after a second without output.
    assert found["at_least"]["ttft_s"]["count"] == 3
    assert found["at_least"]["e2e_s"]["max"] == pytest.approx(1.0)
    assert found["at_least"]["ttft_s"]["mean"] == pytest.approx((0.5 + 0.2 + 1.0) / 3)


def test_a_server_that_counts_nothing():
    one = record(0.0, [0.5, 0.6], prompt_tokens=None, output_tokens=None)
    found = summarize(LoadResult([one], 0.0, 1.0, 0), None)
    assert found["output_tokens"] == 2
    assert found["prompt_tokens"] is None
    assert found["prompt_tokens_per_s"] is None
    assert found["counts"]["without_usage"] == 1


def test_chunks_that_may_carry_several_tokens_are_not_called_short():
    one = record(0.0, [0.5, 0.6], max_tokens=8, output_tokens=None)
    assert summarize(LoadResult([one], 0.0, 1.0, 0), None)["counts"]["shorter_than_asked"] == 0
    told = warn(one)
    assert "2 of 2 answers came without usage, so each chunk counts as one token" in told
    assert "shorter than asked" not in told


def test_answers_that_are_longer_than_asked():
    long = record(0.0, [0.5, 0.6, 0.7], max_tokens=2)
    found = summarize(LoadResult([long, record(0.0, [0.5])], 0.0, 1.0, 0), None)
    assert (found["counts"]["longer_than_asked"], found["counts"]["shorter_than_asked"]) == (1, 0)
    assert "2 of 2 answers were longer than asked for: the server does not keep to max_tokens" in warn(long)
    # Chunks without a count are no more than the tokens in them; one too many is one too many.
    unknown = record(0.0, [0.5, 0.6, 0.7], max_tokens=2, output_tokens=None)
    assert summarize(LoadResult([unknown], 0.0, 1.0, 0), None)["counts"]["longer_than_asked"] == 1


def test_counts_that_one_answer_does_not_tell():
    whole, part = record(0.0, [0.5]), record(0.0, [0.5], cached_tokens=None)
    assert summarize(LoadResult([whole, whole], 0.0, 1.0, 0), None)["cached_tokens"] == 8
    assert summarize(LoadResult([whole, part], 0.0, 1.0, 0), None)["cached_tokens"] is None


def test_how_requests_came():
    assert due_per_s([record(0.0, [1.0])]) is None
    assert due_per_s([record(0.0, [1.0])] * 4) is None  # at once
    assert due_per_s([record(i / 4, [9.0]) for i in range(9)]) == pytest.approx(4.0)
    assert most_in_flight([]) == 0
    # One begins when the other ends: never two.
    assert most_in_flight([record(0.0, [1.0]), record(1.0, [2.0])]) == 1
    assert most_in_flight([record(0.0, [1.0]), record(0.5, [2.0]), record(0.9, [0.95])]) == 3
    assert most_in_flight([record(0.0, [1.0]), record(0.0, [1.0], sent_s=None)]) == 1


def test_what_timed_out_is_not_forgotten():
    begun = failed(0.0, TIMEOUT)
    begun.exchange.chunk_s = [0.25]
    found = summarize(LoadResult([record(0.0, [0.5]), begun], 0.0, 2.0, 0), None)
    assert found["ttft_s"]["max"] == found["e2e_s"]["max"] == 0.5
    assert found["at_least"]["ttft_s"]["max"] == 0.5  # its first chunk came after 0.25 s
    assert found["at_least"]["e2e_s"]["max"] == 1.0
    whole = summarize(LoadResult([record(0.0, [0.3])], 0.0, 2.0, 0), None)
    assert whole["at_least"] is None
    # Over repeats: where none timed out, the latencies are what they are.
    both = combine([found, whole])
    assert both["at_least.e2e_s.p90"]["mean"] == pytest.approx(
        (found["at_least"]["e2e_s"]["p90"] + whole["e2e_s"]["p90"]) / 2
    )
    assert both["at_least.e2e_s.max"]["mean"] == pytest.approx(1.0)
    assert combine([whole, whole])["at_least.e2e_s.max"] is None
    assert set(combine([])) == set(both)
    assert set(combine([]).values()) == {None}


def test_repeats_together():
    repeats = []
    for duration in (2.0, 4.0):
        whole = result()
        repeats.append({**summarize(LoadResult(whole.records, 0.0, duration, 0), None), "memory": None})
    partial = {**summarize(LoadResult(result().records, 0.0, 100.0, 7), None), "memory": None}
    assert partial["complete"] is False
    found = combine([*repeats, partial])
    assert found["output_tokens_per_s"]["mean"] == pytest.approx((2.5 + 1.25) / 2)
    assert found["output_tokens_per_s"]["repeats"] == 2
    half = 12.7062 * statistics.stdev([2.5, 1.25]) / 2**0.5
    assert found["output_tokens_per_s"]["high"] == pytest.approx(1.875 + half)
    assert found["ttft_s.p50"]["mean"] == pytest.approx(0.35)
    assert found["memory.hit_rate"] is None
    # With nothing complete the part that there is speaks.
    assert combine([partial])["duration_s"]["mean"] == 100.0


def test_memory_is_combined():
    base = summarize(result(), None)
    repeats = [{**base, "memory": {"peak_blocks": n, "hit_rate": n / 10}} for n in (2, 4)]
    found = combine(repeats)
    assert found["memory.peak_blocks"] == {"mean": 4, "low": None, "high": None, "repeats": 2}
    assert found["memory.hit_rate"]["mean"] == pytest.approx(0.3)


def test_the_greatest_of_all_repeats_is_not_averaged_away():
    base = summarize(result(), None)
    repeats = [
        {**base, "ttft_s": {**base["ttft_s"], "max": most}, "memory": None} for most in (0.1, 5.0, 0.1)
    ]
    assert combine(repeats)["ttft_s.max"] == {"mean": 5.0, "low": None, "high": None, "repeats": 3}


def test_a_repeat_without_an_answer_is_in_no_mean_but_that_of_the_objective():
    slo = Slo(e2e_s=9.0)
    good = summarize(LoadResult([record(0.0, [0.5, 0.6])] * 2, 0.0, 2.0, 0), slo)
    dead = summarize(LoadResult([failed(0.0, "could not connect")] * 2, 0.0, 0.1, 0), slo)
    found = combine([good, dead])
    assert found["output_tokens_per_s"] == {"mean": 2.0, "low": None, "high": None, "repeats": 1}
    assert found["ttft_s.p50"] == {"mean": 0.5, "low": None, "high": None, "repeats": 1}
    assert found["goodput.fraction"]["mean"] == 0.5
    assert found["goodput.requests_per_s"]["mean"] == 0.5
    assert found["at_least.e2e_s.max"] is None
    # If nothing was answered at all, that is what is told.
    assert combine([dead, dead])["output_tokens_per_s"]["mean"] == 0.0
    # What was waited for is not forgotten with the answers that did not come.
    hung = summarize(LoadResult([failed(0.0, TIMEOUT)] * 2, 0.0, 1.0, 0), slo)
    assert combine([good, hung, dead])["at_least.e2e_s.p50"]["mean"] == pytest.approx(0.8)  # of 0.6 and 1
    told = warnings_of([good, dead, hung], {"kind": "server"}, interrupted=False)
    assert told[0] == (
        "Repeats 2 and 3 of 3 had no answer: they are in no mean but those of the objective, of which "
        "nothing was kept."
    )
    assert "had no answer" not in " ".join(warnings_of([dead], {"kind": "server"}, interrupted=False))


def test_an_interval_that_says_nothing_is_no_note():
    wide = "too few repeats for an interval"
    rate = {"mean": 164.0, "low": 0.0, "high": 2252.0, "repeats": 2}
    assert interval_note(rate) == wide
    assert interval_note(rate | {"low": 100.0, "high": 1000.0}) == "100 to 1,000 (95 %, 2 repeats)"
    assert interval_note(rate | {"low": 100.0, "high": 1001.0}) == wide
    assert interval_note(rate | {"low": None, "high": None, "repeats": 1}) == ""


def test_intervals_end_where_values_do():
    base = summarize(result(), None)
    rates = [
        {**base, "output_tokens_per_s": rate, "memory": {"hit_rate": hits}}
        for rate, hits in ((1.0, 0.5), (9.0, 1.0))
    ]
    found = combine(rates)
    assert found["output_tokens_per_s"]["low"] == 0.0  # 5 less 12.7 times 4
    assert found["output_tokens_per_s"]["high"] == pytest.approx(5 + 12.7062 * 4)
    assert (found["memory.hit_rate"]["low"], found["memory.hit_rate"]["high"]) == (0.0, 1.0)


def test_interrupted_requests_make_a_run_incomplete():
    assert LoadResult([failed(0, INTERRUPTED)], 0, 1, 0).is_complete is False
    assert LoadResult([failed(0, TIMEOUT)], 0, 1, 0).is_complete is True


def test_objectives():
    assert parse_slo("ttft=0.5,tpot=50ms") == Slo(ttft_s=0.5, tpot_s=pytest.approx(0.05))
    assert parse_slo(" e2e=10s ") == Slo(e2e_s=10.0)
    one = timings_of(record(0.0, [0.5, 0.6]))
    assert Slo(ttft_s=0.5, tpot_s=0.11, e2e_s=0.6).is_kept(one)
    assert not Slo(ttft_s=0.49).is_kept(one)
    assert not Slo(tpot_s=0.09).is_kept(one)
    assert not Slo(e2e_s=0.59).is_kept(one)
    assert Slo(tpot_s=1e-9).is_kept(timings_of(record(0.0, [0.5])))


@pytest.mark.parametrize(
    "wrong", ["", "ttft", "ttft=", "ttft=0", "ttft=-1", "itl=1", "ttft=1,ttft=2", "ttft=nan"]
)
def test_objectives_that_are_none(wrong):
    with pytest.raises(InvalidConfig, match="slo="):
        parse_slo(wrong)


def test_what_plots_show():
    found = quantiles([result()])
    assert found["ttft_s"][0] == pytest.approx(0.2)
    assert found["ttft_s"][50] == pytest.approx(0.35)
    assert found["ttft_s"][100] == pytest.approx(0.5)
    assert [len(values) for values in found.values()] == [101] * 4
    line = timeline([result()])
    assert line["step_s"] == pytest.approx(0.1)
    assert sum(line["output_tokens_per_s"]) * line["step_s"] == pytest.approx(5)
    # Seconds of requests under way: 0.7 and 0.3 answered, 1.0 each of those that failed, up to the end at 2.
    assert sum(line["running"]) * line["step_s"] == pytest.approx(0.7 + 0.3 + 0.5 + 0.4 + 0.3)


def test_a_request_as_it_is_kept():
    found = request_as_dict(record(5.0, [5.5, 5.75], late=0.25), 4.0)
    assert (found["due_s"], found["sent_s"], found["end_s"]) == (1.0, 1.25, 1.75)
    assert found["chunk_s"] == [1.5, 1.75]
    assert (found["ttft_s"], found["tpot_s"], found["e2e_s"]) == (0.5, 0.25, 0.75)
    assert request_as_dict(failed(5.0, TIMEOUT), 4.0)["failure"] == TIMEOUT


def warn(*records, target=None, **options):
    repeat = summarize(LoadResult(list(records), 0.0, 2.0, 0), None)
    return " ".join(warnings_of([repeat, repeat], target or {"kind": "server"}, interrupted=False, **options))


def test_warnings():
    assert warn(record(0.0, [0.5, 0.6])) == ""
    assert "late: p99 50.0 ms" in warn(record(0.0, [0.5, 0.6], late=0.05))
    assert "4 of 10 requests failed: http 429 (too many)" in warn(*result().records)
    assert "2.00 tokens on average" in warn(record(0.0, [0.5, 0.6], tokens=4))
    assert "1.00 tokens" not in warn(record(0.0, [0.5, 0.6], tokens=2))
    assert "shorter than asked" in warn(record(0.0, [0.5, 0.6], max_tokens=3))
    assert "In 2 of 2 answers all tokens came at once" in warn(record(0.0, [0.5], tokens=2))
    assert "Sent twice: 2 requests, as" in warn(record(0.0, [0.5], was_resent=True))
    told = warn(record(0.0, [0.5, 0.6]), failed(0.0, TIMEOUT))
    assert "leave out the slowest, 2 requests that timed out, and" in told
    assert "p99 of TTFT is at least 0.995 s, that of E2E at least 0.996 s" in told
    assert "without usage" in warn(record(0.0, [0.5, 0.6], output_tokens=None))
    repeat = summarize(result(), None)
    assert "One repeat only" in " ".join(warnings_of([repeat], {}, interrupted=False))
    told = warnings_of([], {}, interrupted=True)
    assert told == ["Interrupted before the first repeat: nothing was measured."]
    assert "Interrupted: 1 complete" in " ".join(warnings_of([repeat], {}, interrupted=True))


def test_what_was_read_late_is_no_time_of_the_server():
    one = record(0.0, [1.0, 1.1, 1.2, 1.3, 1.4]).exchange  # 0.4 s of tokens, 0.1 s a gap
    for stall, late, gaps in (
        ((1.05, 1.095), False, 0),  # nothing came
        ((0.97, 1.0), False, 0),  # not a tenth of 0.4 s
        ((0.95, 1.0), True, 0),
        ((1.395, 1.44), True, 0),
        ((1.15, 1.2001), False, 1),  # half a gap and more
        ((0.0, 1.2), True, 2),
        ((0.0, 9.0), True, 4),
    ):
        assert (is_tpot_late(one, [stall]), num_late_gaps(one, [stall])) == (late, gaps), stall
    assert num_late_gaps(one, [(0.0, 0.9), (1.08, 1.18), (1.25, 1.31), (2.0, 3.0)]) == 2
    together = record(0.0, [1.0] * 5).exchange
    assert is_tpot_late(together, [(0.9, 1.1)])
    assert not is_tpot_late(together, [])  # the server's doing
    assert not is_tpot_late(record(0.0, [1.0]).exchange, [(0.9, 1.1)])


def test_late_reading_is_told_and_no_headline():
    records = [record(0.0, [1.0, 1.0001, 1.0002], index=i) for i in range(9)]
    records.append(record(0.0, [5.0, 5.1, 5.2], index=9))
    for stalls, told in (
        ([(0.8, 1.1)], "the first or last chunk of 18 of 20 answers and 36 of 40 later chunks"),
        ([(5.19, 5.3)], None),  # one answer and one gap
    ):
        repeat = {**summarize(LoadResult(records, 0.0, 6.0, 0, stalls), None), "memory": None}
        found = warnings_of([repeat] * 2, {}, interrupted=False)
        assert bool(too_many_late([repeat], "tpot_s")) == bool(told)
        assert [told in text and "TPOT and ITL are its own" in text for text in found] == (
            [True] if told else []
        )


def test_repeats_of_the_same_prompts_are_told():
    unknown = {"memory": None, "cached_tokens": None, "prompt_tokens": 10}
    (told,) = same_prompts([unknown] * 3, {"kind": "server"})
    assert told.startswith(
        "Each of the 3 repeats sent the same prompts, and what a prefix cache remembers is "
    )
    assert "--repeats 1" in told
    repeats = [unknown | {"cached_tokens": cached} for cached in (1, 8, 9)]
    assert "(hit rate 10.0% in the first, 85.0% after it)" in same_prompts(repeats, {})[0]
    repeats = [unknown | {"memory": {"hit_rate": rate}} for rate in (0.0, 0.998)]
    assert "(hit rate 0.0% in the first, 99.8% after it)" in same_prompts(repeats, {})[0]
    assert same_prompts([unknown], {}) == []
    assert same_prompts(repeats, {"prefix_cache": False}) == []
