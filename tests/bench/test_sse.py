"""Addresses of servers, and events however they are cut."""

import json
from array import array

import pytest
from loading import load

from octavo.bench.load.http import Address
from octavo.bench.load.sse import EventReader
from octavo.bench.workloads.item import WorkItem
from octavo.core.errors import InvalidRequest


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://a:5", ("http", "a", 5, "/v1")),
        ("http://a:5/", ("http", "a", 5, "/v1")),
        ("http://a:5/v1/", ("http", "a", 5, "/v1")),
        ("https://a/deep", ("https", "a", 443, "/deep/v1")),
        ("a:5", ("http", "a", 5, "/v1")),
        ("http://[::1]:5", ("http", "::1", 5, "/v1")),
    ],
)
def test_addresses(url, wanted):
    address = Address.parse(url)
    assert (address.scheme, address.host, address.port, address.base) == wanted


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "http://a:b", "http://u:p@a"])
def test_addresses_that_are_none(url):
    with pytest.raises(InvalidRequest, match="url="):
        Address.parse(url)


def test_events_cut_anywhere():
    stream = b': hello\n\ndata: {"a": 1}\n\nevent: x\ndata: one\ndata:two\n\ndata: [DONE]\n\n'
    wanted = [b'{"a": 1}', b"one\ntwo", b"[DONE]"]
    for text in (stream, stream.replace(b"\n", b"\r\n"), stream.replace(b"\n", b"\r")):
        for size in range(1, len(text) + 1):
            reader = EventReader()
            found = []
            for begin in range(0, len(text), size):
                found += reader.feed(text[begin : begin + size])
            assert found == wanted, size


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=repr)
def test_an_event_is_there_with_the_end_of_its_empty_line(end):
    reader = EventReader()
    assert reader.feed(b"data: a" + end + end) == [b"a"]
    assert reader.feed(b"data: b" + end) == []
    assert reader.feed(end + b"data: c") == [b"b"]
    reader = EventReader()
    assert [reader.feed(part) for part in (b"data: a\r", b"", b"\n", b"\r\n")] == [[], [], [], [b"a"]]


def test_an_event_of_many_pieces_is_copied_once():
    """A reader that began anew for each of these pieces would touch 2 TB."""
    reader = EventReader()
    reader.feed(b"data: ")
    for _ in range(200_000):
        assert reader.feed(b"x" * 100) == []
    (event,) = reader.feed(b"\n\n")
    assert len(event) == 20_000_000


def test_prompts_of_token_ids_are_sent_as_numbers():
    _, fake = load([WorkItem(index=0, prompt=array("i", [5, 6]), max_tokens=1)])
    assert json.dumps(fake.asked[0].body["prompt"]) == "[5, 6]"
