"""What pieces of a stream mean, at moments that are chosen here."""

import json

import pytest

from octavo.bench.load.answers import StreamedAnswer
from octavo.bench.load.exchange import BAD_ANSWER, BROKEN, NO_OUTPUT, SERVER_ERROR, Exchange
from octavo.bench.load.generator import Record
from octavo.bench.metrics.timings import timings_of
from octavo.bench.workloads.item import WorkItem


def read(*events, is_chat=False):
    """An answer whose pieces come at the moments 1, 2, 3, ..."""
    exchange = Exchange(sent_s=0.0)
    answer = StreamedAnswer(exchange, is_chat=is_chat)
    for moment, event in enumerate(events, 1):
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        answer.feed(b"data: " + data + b"\n\n", moment)
    answer.read_all()
    return exchange


def text(value, reason=None):
    return {"choices": [{"index": 0, "text": value, "finish_reason": reason}]}


def delta(reason=None, **fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def usage(count):
    return {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}}


def test_a_piece_without_text_is_no_token_yet():
    e = read(text(""), text("a"), text(""), text("b", "length"), usage(3), b"[DONE]")
    assert e.chunk_s == [2, 4]
    assert "".join(e.text) == "ab"
    assert (e.finish_s, e.finish_had_output, e.last_s) == (4, True, 6)
    t = timings_of(Record(WorkItem(index=0, prompt="x", max_tokens=3), 0.0, e))
    assert t.ttft_s == 2
    assert t.misses_tokens
    begin = (delta(role="assistant", content=""), delta(content=None))
    e = read(*begin, delta(content="a"), delta("stop"), is_chat=True)
    assert (e.chunk_s, e.finish_s, e.finish_had_output) == ([3], 4, False)
    assert e.cached_tokens is None


def test_thoughts_and_calls_are_output_of_a_chat():
    call = {"index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}
    calls = (delta(tool_calls=[call]), delta(tool_calls=[{"index": 0}]))
    e = read(delta(reasoning_content="hm"), *calls, delta(content="yes"), delta("stop"), is_chat=True)
    assert (e.chunk_s, e.chunk_chars, e.text) == ([1, 2, 4], [2, 9, 3], ["yes"])


def test_nothing_is_interpreted_before_it_is_asked_for():
    exchange = Exchange()
    answer = StreamedAnswer(exchange, is_chat=False)
    exchange.reader = answer.read_all
    answer.feed(b"data: oops\n\n", 1.0)
    assert exchange.failure is None
    exchange.settle()
    assert exchange.failure == BAD_ANSWER
    assert exchange.reader is None


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=repr)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_an_answer_is_complete_with_its_last_event(end, size):
    said = json.dumps(text("\ndata: [DONE]")).encode()  # which a text may say too
    lines = [b"data: " + said, b"", b": data: [DONE]", b"", b"data:[DONE]", b"", b": more"]
    stream = end.join(lines)
    answer = StreamedAnswer(Exchange(), is_chat=False)
    told = [answer.feed(stream[at : at + size], 1.0) for at in range(0, len(stream), size)]
    complete_at = stream.index(b"data:[DONE]") + len("data:[DONE]") - 1
    assert told.index(True) == complete_at // size
    assert StreamedAnswer(Exchange(), is_chat=False).feed(b"data: [DONE]", 1.0)


def test_what_waits_is_bounded():
    exchange = Exchange()
    answer = StreamedAnswer(exchange, is_chat=False)
    piece = b"data: " + json.dumps(text("x" * 10_000)).encode() + b"\n\n"
    for moment in range(1000):
        answer.feed(piece, moment)
        assert answer.unread_bytes <= 5_000_000
    assert len(exchange.chunk_s) > 500


ODD = [
    b"{oops", b"[1, 2]", b"3", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000,
    {"choices": "all"}, {"choices": {"text": "a"}}, {"choices": [None]}, {"choices": ["a"]},
    text(["a"]), text(5), text({"a": 1}), text("a", 7), text("a", ["stop"]),
    {"choices": [], "usage": "many"}, {"choices": [], "usage": [1]},
]  # fmt: skip


@pytest.mark.parametrize("event", ODD, ids=lambda event: repr(event)[:30])
def test_an_odd_piece_fails_its_own_answer(event):
    e = read(text("a"), event, text("b", "length"))
    assert e.failure == BAD_ANSWER
    assert e.detail
    assert json.dumps(e.text)


@pytest.mark.parametrize(
    "fields",
    [
        {"content": ["a"]},
        {"content": {"a": 1}},
        {"reasoning": 5},
        {"tool_calls": "f"},
        {"tool_calls": ["f"]},
    ],
    ids=repr,
)
def test_an_odd_piece_of_a_chat(fields):
    assert read(delta(**fields), delta(content="b", reason="stop"), is_chat=True).failure == BAD_ANSWER


def test_an_odd_delta():
    odd = {"choices": [{"index": 0, "delta": "a", "finish_reason": None}]}
    assert read(odd, delta("stop", content="b"), is_chat=True).failure == BAD_ANSWER


@pytest.mark.parametrize("count", ["5", -1, 1.5, None, True, 10**400, [1]], ids=lambda count: repr(count)[:9])
def test_counts_that_are_none(count):
    e = read(text("a", "length"), usage(count))
    assert (e.failure, e.output_tokens, e.num_output_tokens) == (None, None, 1)


def test_ends_that_are_none():
    assert read(text("a")).failure == BROKEN
    assert read({"choices": None}).failure == BROKEN
    assert read(text("", "stop")).failure == NO_OUTPUT
    assert read(text("", "stop"), usage(1)).failure is None
    assert read(text("a"), {"error": {"message": "fire"}}).detail == "fire"
    assert read({"error": ["fire"]}, text("a")).failure == SERVER_ERROR
