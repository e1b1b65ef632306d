"""The load generator and its client against a server whose behaviour is known. No test depends on a time."""

import asyncio
import time

import fake_openai
import pytest
from fake_openai import Behaviour, FakeServer
from loading import AT_ONCE, load, some

from octavo.bench.load import exchange as outcomes
from octavo.bench.load import generator, http, stalls
from octavo.bench.load.answers import StreamedAnswer
from octavo.bench.load.arrivals import ArrivalPlan
from octavo.bench.load.exchange import Exchange
from octavo.bench.load.generator import EARLIER_TURN, run_load
from octavo.bench.load.http import Address
from octavo.bench.load.openai_target import OpenAITarget, ServerOptions
from octavo.bench.metrics.summary import summarize
from octavo.bench.metrics.timings import timings_of
from octavo.bench.workloads.conversations import Conversations
from octavo.bench.workloads.item import WorkItem
from octavo.bench.workloads.lengths import Fixed
from octavo.core.errors import InvalidConfig


def test_what_is_sent_and_what_comes_back():
    items = some(4)
    result, fake = load(items)
    assert result.is_complete
    assert [record.item for record in result.records] == items
    assert sorted(a.body["prompt"] for a in fake.asked) == sorted(i.prompt.tolist() for i in items)
    body = fake.asked[0].body
    assert body["model"] == "fake"
    assert body["temperature"] == 0
    assert body["stream"] is body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}
    for record in result.records:
        e = record.exchange
        assert e.failure is None
        assert len(e.chunk_s) == e.output_tokens == 5
        assert (e.prompt_tokens, e.cached_tokens, e.finish_reason) == (3, 3, "length")
        assert "".join(e.text) == " tok" * 5
        assert record.due_s <= e.sent_s <= e.chunk_s[0] <= e.chunk_s[-1] <= e.last_s <= result.end_s
        assert e.last_s <= e.closed_s


@pytest.mark.parametrize(
    "how",
    [
        Behaviour(dribble=1),
        Behaviour(dribble=7, line_end="\r\n"),
        Behaviour(line_end="\r\n"),
        Behaviour(close=True),
        Behaviour(close=True, dribble=3, line_end="\r\n"),
    ],
    ids=repr,
)
def test_bodies_in_all_forms(how):
    result, _ = load(some(3), choose=lambda _: how)
    for record in result.records:
        assert record.exchange.failure is None
        assert len(record.exchange.chunk_s) == 5
        assert record.exchange.output_tokens == 5


def test_chats():
    items = [WorkItem(index=0, prompt="Hello", max_tokens=3)]
    result, fake = load(items, options=ServerOptions(is_chat=True))
    assert fake.asked[0].path == "/v1/chat/completions"
    assert fake.asked[0].body["messages"] == [{"role": "user", "content": "Hello"}]
    e = result.records[0].exchange
    assert len(e.chunk_s) == 3  # the piece with the role alone is no output
    assert "".join(e.text) == " tok" * 3


def test_counts_are_checked_against_chunks():
    result, _ = load(some(1, 7), choose=lambda _: Behaviour(tokens_per_chunk=3))
    t = timings_of(result.records[0])
    assert (t.num_tokens, t.num_chunks, t.misses_tokens) == (7, 3, True)
    result, _ = load(some(1, 7), choose=lambda _: Behaviour(empty_last=True))
    t = timings_of(result.records[0])
    assert (t.num_tokens, t.num_chunks, t.misses_tokens) == (7, 6, False)
    assert len(t.itl_s) == 6
    result, _ = load(some(1, 7), choose=lambda _: Behaviour(no_usage=True))
    e = result.records[0].exchange
    assert (e.output_tokens, e.num_output_tokens) == (None, 7)


@pytest.mark.parametrize(
    ("how", "failure", "detail"),
    [
        (Behaviour(status=429), "http 429", "told to answer 429"),
        (Behaviour(status=500), "http 500", "told to answer 500"),
        (Behaviour(break_after=2), outcomes.BROKEN, ""),
        (Behaviour(error_after=2), outcomes.SERVER_ERROR, "the model caught fire"),
        (Behaviour(garbage_after=2), outcomes.BAD_ANSWER, "not JSON"),
        (Behaviour(as_json=True), outcomes.BAD_ANSWER, "not a stream"),
        (Behaviour(no_finish=True), outcomes.BROKEN, "without a finish_reason"),
        (Behaviour(num_tokens=0), outcomes.BROKEN, ""),
        (Behaviour(first_s=30), outcomes.TIMEOUT, "after 1 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_failures_are_counted_by_reason(how, failure, detail):
    """One of four fails; nothing is lost, and the others are answered."""

    def choose(asked):
        return how if asked.body["max_tokens"] == 6 else Behaviour()

    items = some(4)
    items[2] = WorkItem(index=2, prompt=items[2].prompt, max_tokens=6)
    result, _ = load(items, choose=choose, options=ServerOptions(timeout_s=1 if how.first_s else 30))
    assert [r.exchange.failure for r in result.records] == [None, None, failure, None]
    assert detail in result.records[2].exchange.detail
    found = summarize(result, None)
    assert found["requests"] == {"total": 4, "ok": 3, "failed": 1, "not_sent": 0}
    assert found["failures"][failure]["count"] == 1
    assert found["output_tokens"] == 15
    assert result.is_complete


def test_connections_that_the_server_gives_up(monkeypatch):
    """A client that holds on to them must not count it as a failure of the request that comes next."""
    monkeypatch.setattr(http, "_CROSSING_S", 60.0)
    result, fake = load(
        some(20), ArrivalPlan(kind="closed", concurrency=2), lambda _: Behaviour(hang_up=True)
    )
    assert [r.exchange.failure for r in result.records] == [None] * 20
    assert len(fake.asked) == 20
    assert fake.num_connections >= 20


def test_a_request_that_may_have_begun_is_not_sent_again(monkeypatch):
    """A server that takes a request on a connection in use and resets it: at once it looks like a goodbye."""
    users = ArrivalPlan(kind="closed", concurrency=1)

    def choose(asked):
        return Behaviour(drop_s=0.0) if asked.number > 1 else Behaviour()  # the first is open()'s

    monkeypatch.setattr(http, "_CROSSING_S", 60.0)
    result, fake = load(some(1), users, choose)
    assert [r.exchange.failure for r in result.records] == [None]
    assert [r.exchange.was_resent for r in result.records] == [True]
    assert len(fake.asked) == 2
    found = summarize(result, None)
    assert (found["counts"]["resent"], found["requests"]["failed"]) == (1, 0)
    monkeypatch.setattr(http, "_CROSSING_S", -1.0)  # as if it came later than a goodbye can
    result, fake = load(some(1), users, choose)
    assert [r.exchange.failure for r in result.records] == [outcomes.LOST]
    assert len(fake.asked) == 1


def test_a_new_connection_that_is_lost_is_a_failure(monkeypatch):
    monkeypatch.setattr(http, "_CROSSING_S", 60.0)
    result, fake = load(some(1), choose=lambda a: Behaviour(drop_s=0.0 if a.body["max_tokens"] > 1 else None))
    assert [r.exchange.failure for r in result.records] == [outcomes.LOST]
    assert len(fake.asked) == 2  # once on the connection that was there, once on a new one
    assert summarize(result, None)["counts"]["resent"] == 1


@pytest.mark.parametrize("dribble", [None, 1], ids=["whole", "bytes"])
def test_the_next_request_waits_for_the_answer_and_not_for_the_end_of_its_message(monkeypatch, dribble):
    """The server never ends a message; each but the first of its connections can be used for one answer."""
    monkeypatch.setattr(http, "_LINGER_S", 600.0)
    users = ArrivalPlan(kind="closed", concurrency=1)
    result, fake = load(some(3), users, lambda _: Behaviour(linger_s=600.0, dribble=dribble))
    assert [r.exchange.failure for r in result.records] == [None] * 3
    assert [a.number for a in fake.asked][1:] == [0, 0]  # the first came behind questions of open()
    assert result.end_s == result.records[-1].exchange.last_s <= result.records[-1].exchange.closed_s


@pytest.mark.parametrize("ends", [True, False])
def test_a_connection_is_used_again_when_its_message_has_ended(monkeypatch, ends):
    monkeypatch.setattr(http, "_SOON_S", 0.0)
    monkeypatch.setattr(http, "_LINGER_S", 600.0 if ends else 0.01)

    async def run():
        async with FakeServer(lambda _: Behaviour(linger_s=0.01 if ends else 600.0)) as fake:
            client = http.HttpClient(Address.parse(fake.url), {})
            for _ in range(2):
                answer = StreamedAnswer(Exchange(), is_chat=False)
                on_response = lambda _, feed=answer.feed: feed  # noqa: E731
                await client.request("POST", "/v1/completions", b'{"max_tokens": 2}', on_response=on_response)
                while client._lingering:
                    await asyncio.sleep(0.001)
            await client.close()
            return [asked.number for asked in fake.asked]

    assert asyncio.run(asyncio.wait_for(run(), 60)) == ([0, 1] if ends else [0, 0])


def test_the_type_of_an_answer_in_any_case():
    result, _ = load(some(2), choose=lambda _: Behaviour(content_type="Text/Event-Stream; charset=utf-8"))
    assert [r.exchange.failure for r in result.records] == [None] * 2


def test_a_compressed_answer_is_named():
    result, _ = load(
        some(1), choose=lambda a: Behaviour(encoding="gzip" if a.body["max_tokens"] > 1 else None)
    )
    e = result.records[0].exchange
    assert e.failure == outcomes.BAD_ANSWER
    assert e.detail == "the answer is compressed (gzip), which was not asked for"


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_timeouts_that_are_none(timeout_s):
    with pytest.raises(InvalidConfig, match=f"timeout={timeout_s:g}: must be a number of seconds above 0"):
        ServerOptions(timeout_s=timeout_s)


def test_prompts_that_do_not_suit_the_endpoint():
    result, _ = load(some(2), options=ServerOptions(is_chat=True))
    assert [r.exchange.failure for r in result.records] == [outcomes.UNSUITED] * 2
    items = Conversations(num_sessions=1, turns=Fixed(1)).items(0)
    result, _ = load(items)
    assert result.records[0].exchange.detail == "messages need --chat"


def test_a_server_that_goes_away():
    async def run():
        async with FakeServer() as fake:
            target = OpenAITarget(fake.url, ServerOptions())
            await target.open()
        result = await run_load(target, some(3), AT_ONCE, stop=asyncio.Event())
        assert [r.exchange.failure for r in result.records] == [outcomes.CONNECT] * 3

    asyncio.run(run())


def test_a_closed_loop_keeps_to_its_users(monkeypatch):
    monkeypatch.setattr(http, "_SOON_S", 10.0)  # however slowly this machine ends a message
    result, fake = load(some(12), ArrivalPlan(kind="closed", concurrency=3), lambda _: Behaviour(gap_s=0.002))
    assert result.is_complete
    assert fake.most_running == 3
    # Connections are used again: those three, and one for the questions before.
    assert fake.num_connections <= 4


def test_an_open_loop_waits_for_nobody(monkeypatch):
    """All come although none is answered before the last is there."""
    count = 8
    seen = []
    all_are_there = asyncio.Event()

    def choose(asked):
        seen.append(asked)
        if len(seen) == 1 + count:  # the first is open()'s
            all_are_there.set()
        return Behaviour()

    async def until(_):
        if len(seen) > 1:
            await all_are_there.wait()

    monkeypatch.setattr(fake_openai, "until", until)
    plan = ArrivalPlan(kind="bursty", rate=100, burstiness=0)
    result, fake = load(some(count), plan, choose)
    assert result.is_complete
    assert fake.most_running == count
    due = [record.due_s - result.start_s for record in result.records]
    assert due == pytest.approx([i / 100 for i in range(count)])


def test_a_loop_that_is_held_up_is_noticed(monkeypatch):
    monkeypatch.setattr(stalls, "_TIMER_S", 0.002)
    held = []

    def hold(_):
        begin_s = time.perf_counter()
        time.sleep(0.1)
        held.append((begin_s, time.perf_counter()))
        return Behaviour()

    result, _ = load(some(1), choose=hold)  # the server shares the loop
    _, end_s = held[-1]
    assert any(a < end_s - 0.02 and end_s <= b for a, b in result.stalls)
    assert all(b - a > 0.002 for a, b in result.stalls)


def test_turns_follow_answers():
    items = Conversations(
        num_sessions=2, turns=Fixed(3), input_len=Fixed(2), output_len=Fixed(2), pause_s=0.01
    ).items(0)
    result, fake = load(items, options=ServerOptions(is_chat=True))
    assert result.is_complete
    assert len(result.records) == 6
    by_length = sorted(len(a.body["messages"]) for a in fake.asked)
    assert by_length == [1, 1, 3, 3, 5, 5]
    longest = max((a.body["messages"] for a in fake.asked), key=len)
    assert [m["role"] for m in longest] == ["user", "assistant"] * 2 + ["user"]
    assert longest[1]["content"] == " tok tok"
    for first, second in zip(result.records[:2], result.records[1:3], strict=True):
        assert second.due_s == pytest.approx(first.exchange.closed_s + 0.01)


@pytest.mark.parametrize("bound", [0, 1 << 28])
def test_answers_wait_to_be_read_up_to_a_bound(monkeypatch, bound):
    monkeypatch.setattr(generator, "_MOST_UNREAD_BYTES", bound)
    waiting = []

    async def run():
        async with FakeServer() as fake:
            target = OpenAITarget(fake.url, ServerOptions())
            await target.open()
            seen = []

            def on_done(record):
                waiting.append(sum(each.exchange.reader is not None for each in seen))
                seen.append(record)

            users = ArrivalPlan(kind="closed", concurrency=1)
            result = await run_load(target, some(3), users, stop=asyncio.Event(), on_done=on_done)
            await target.close()
            assert [len(r.exchange.chunk_s) for r in result.records] == [5] * 3

    asyncio.run(run())
    assert waiting == ([0, 1, 2] if bound else [0, 0, 0])


def test_turns_after_a_failed_one_are_counted():
    items = Conversations(num_sessions=2, turns=Fixed(3), output_len=Fixed(2)).items(0)

    def choose(asked):
        fails = len(asked.body["messages"]) == 3
        return Behaviour(status=500) if fails else Behaviour()

    result, _ = load(items, choose=choose, options=ServerOptions(is_chat=True))
    assert [r.exchange.failure for r in result.records] == [None, "http 500", EARLIER_TURN] * 2


def test_an_interrupted_run_keeps_what_there_is():
    plan = ArrivalPlan(kind="closed", concurrency=2)

    def choose(asked):
        return Behaviour(first_s=60.0 if asked.body["max_tokens"] == 6 else 0.0)

    items = some(10)
    items[3:] = [WorkItem(index=i.index, prompt=i.prompt, max_tokens=6) for i in items[3:]]
    result, _ = load(items, plan, choose, stop_after=3)
    assert not result.is_complete
    ok = [r for r in result.records if r.is_ok]
    assert len(ok) == 3
    others = {r.exchange.failure for r in result.records if not r.is_ok}
    assert others <= {outcomes.INTERRUPTED}
    assert result.num_not_sent == 10 - len(result.records) >= 5
    assert summarize(result, None)["output_tokens"] == 15
