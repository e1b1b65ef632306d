"""Servers that are named on the command line: whose key, model and fields go to whom, and which hang."""

import asyncio
import json

import pytest
from fake_openai import Behaviour

from octavo.bench.load.openai_target import ServerOptions
from octavo.cli.bench.named_servers import NamedServers

FEW = ("-n", 2, "--output-len", 3, "--input-len", 4, "--no-ceilings", "--json")


def named(**servers):
    return [part for name, server in servers.items() for part in ("--server", f"{name}={server.url}")]


def keys(server):
    return {asked.headers.get("authorization") for asked in server.asked}


def test_each_server_gets_its_own_key_and_no_report_has_one(run, fake, tmp_path):
    a, b, c = fake(), fake(), fake()
    file = tmp_path / "key"
    file.write_text("secret-c\n")
    status, out, err = run(
        "bench", "compare", *named(a=a, b=b, c=c), "--api-key", "a=secret-a=", "--api-key-file", f"c={file}",
        "--rounds", 1, *FEW, "--html", tmp_path / "report.html",
    )  # fmt: skip
    assert status == 0
    assert [keys(server) for server in (a, b, c)] == [{"Bearer secret-a="}, {None}, {"Bearer secret-c"}]
    assert "--api-key ..." in json.loads(out)["command_line"]
    assert "secret" not in out + err + (tmp_path / "report.html").read_text()


def test_a_key_alone_is_that_of_the_only_server(fake):
    """It may look like NAME=KEY."""
    server = fake()

    async def go(given):
        (made,) = NamedServers(server=[f"a={server.url}"], api_key=[given]).contestants()
        await (await made.start(ServerOptions())).stop()

    for given in ("sk-1=", "a=sk-1="):
        asyncio.run(go(given))
        assert keys(server) == {"Bearer sk-1="}
        server.asked.clear()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--api-key", "hush"],
            "api_key: there are 2 servers (a, b), and each gets a key of its own only: wr",
        ),
        (["--api-key", "c=hush"], "each gets a key of its own only: write NAME=KEY"),
        (["--api-key-file", "hush"], "each gets a key of its own only: write NAME=FILE"),
        (["--api-key", "a=hush", "--api-key", "a=hush2"], "api_key: a has two; give one"),
        (["--api-key", "a=hush", "--api-key-file", "a=x"], "a: give either --api-key or --api-key-file"),
        (["--api-key-file", "a=/no/such"], "api_key_file: cannot read /no/such"),
        (["--body", "a=[1]"], "body='[1]': must be a JSON object"),
        (["--body", "c={}"], "body: no --server is called 'c'"),
        (["--ignore-eos", "maybe"], "choose one of auto, on, off"),
        (["--timeout", "0"], "timeout=0: must be a number of seconds above 0"),
    ],
)
def test_wrong_options_of_servers(run, arguments, message):
    status, out, err = run("bench", "compare", "--server", "a=x", "--server", "b=y", *arguments)
    assert status == 1
    assert message in err
    assert "hush" not in out + err


@pytest.mark.parametrize("name", ["x\x1b[31m", "x\ny", "\u202ex", "x" * 61])
def test_names_that_a_terminal_would_obey_are_refused(run, name, tmp_path):
    status, _, err = run("bench", "compare", "--server", f"{name}=x", "--server", "b=y")
    assert status == 1
    assert "must be 1 to 60 characters that print" in err
    assert "\x1b" not in err
    program = tmp_path / "program.json"
    program.write_text(json.dumps({"name": name, "command": ["true"]}))
    status, _, err = run("bench", "compare", "--program", program, "--server", "b=y")
    assert status == 1
    assert "must be 1 to 60 characters that print" in err


def test_a_name_may_look_like_markup(run, fake, tmp_path):
    a, b = fake(), fake()
    few = ("-n", 1, "--output-len", 2, "--rounds", 2, "--no-ceilings")
    named = ["--server", f"[/b]<i>={a.url}", "--server", f"é & b={b.url}"]
    status, out, _ = run("bench", "compare", *named, *few, "--html", tmp_path / "report.html")
    assert status == 0
    assert "against é & b" in out
    assert "Above 1 x [/b]<i> is better" in out
    page = (tmp_path / "report.html").read_text()
    assert "Above 1 x [/b]&lt;i&gt; is better" in page
    assert "é &amp; b" in page


def test_fields_go_to_their_server_and_end_tokens_are_asked_of_all(run, fake):
    a, b = fake(), fake()
    arguments = [*named(a=a, b=b), "--body", 'a={"top_k": 3}', "--rounds", 1, *FEW]
    for choice, sent in (("auto", {True}), ("off", {None})):
        assert run("bench", "compare", *arguments, "--ignore-eos", choice)[0] == 0
        assert {asked.body.get("top_k") for asked in a.asked} == {3}
        assert {asked.body.get("top_k") for asked in b.asked} == {None}
        assert {asked.body.get("ignore_eos") for asked in (*a.asked, *b.asked)} == sent
        a.asked.clear()
        b.asked.clear()


def test_a_server_that_lists_no_models_takes_a_name(run, fake):
    a, b = fake(), fake()
    odd = f"b={b.url}/elsewhere"  # where nothing but requests is answered
    arguments = ["--server", f"a={a.url}", "--server", odd, "--rounds", 1, *FEW]
    status, _, err = run("bench", "compare", *arguments)
    assert status == 1
    assert "status 404" in err
    assert run("bench", "compare", *arguments, "--model-name", "b=m")[0] == 0
    assert {asked.body["model"] for asked in b.asked} == {"m"}


def test_a_server_that_hangs_drops_out_after_one_timeout(run, fake):
    """Of 8 requests by 2 users none is answered: the first that times out ends the round."""
    a = fake()
    b = fake(lambda asked: Behaviour(first_s=0.0 if asked.body["max_tokens"] == 1 else 600.0))
    status, out, _ = run(
        "bench", "compare", *named(a=a, b=b), "--timeout", 0.2, "-c", 2, "--rounds", 2, "--warmup", 0,
        *FEW, "-n", 8,
    )  # fmt: skip
    assert status == 1
    assert len(b.asked) <= 1 + 2 + 2  # the probe, one each, and one that went out before the round was ended
    side = json.loads(out)["comparisons"][0]["sides"][1]
    assert side["failure"] == "round 1: timed out: after 0.2 s"


def test_one_that_hangs_keeps_no_objective(run, fake):
    """It answers the probe and the 8 requests of the first round, then never again.

    When the first of them times out, the 7 others are interrupted: that is no reason to tell.
    """
    a = fake()
    b = fake(lambda _: Behaviour(first_s=600.0 if len(b.asked) > 9 else 0.0))
    status, out, _ = run(
        "bench", "compare", *named(a=a, b=b), "--timeout", 0.3, "--rate", 50, "--rounds", 4, "--warmup", 0,
        *FEW, "-n", 8, "--slo", "e2e=60",
    )  # fmt: skip
    assert status == 0
    side = json.loads(out)["comparisons"][0]["sides"][1]
    assert side["failure"] == "round 2: timed out: after 0.3 s"
    assert side["differences"]["goodput.fraction"]["rounds"] == [0.0, 1.0]


def test_who_refuses_half_keeps_half_without_usage_too(run, fake):
    """Its pieces are as many as the tokens that those who were answered asked for."""
    a = fake()
    b = fake(lambda _: Behaviour(no_usage=True, status=200 if len(b.asked) % 2 else 429))
    arguments = ["-c", 1, "--rounds", 2, "--warmup", 0, *FEW, "--slo", "e2e=60"]
    status, out, _ = run("bench", "compare", *named(a=a, b=b), *arguments)
    assert status == 0
    side = json.loads(out)["comparisons"][0]["sides"][1]
    assert side["differences"]["goodput.fraction"]["rounds"] == [0.5, 0.5]


def test_one_that_is_not_there_ends_it_before_anything_is_measured(run, fake):
    a = fake()
    arguments = ["--server", f"a={a.url}", "--server", "gone=http://127.0.0.1:9", *FEW]
    status, out, err = run("bench", "compare", *arguments)
    assert status == 1
    assert err.startswith(
        "octavo: nothing could be compared: gone: does not start: cannot reach http://127.0"
    )
    assert {asked.body["max_tokens"] for asked in a.asked} == {1}
    report = json.loads(out)
    assert [side["rounds"] for side in report["comparisons"][0]["sides"]] == [[], []]
    assert "It ended after 0 of 6 rounds: only a was left." in report["warnings"]


def test_one_that_fails_in_every_round_cannot_be_compared(run, fake):
    a = fake()
    b = fake(lambda asked: Behaviour(status=200 if len(b.asked) % 2 else 429))
    status, out, err = run("bench", "compare", *named(a=a, b=b), "-c", 1, "--rounds", 2, "--warmup", 0, *FEW)
    assert status == 1
    assert "2 of 4 requests failed: http 429" in err
    report = json.loads(out)
    assert report["comparisons"][0]["sides"][1]["ratios"] == {}
    assert report["comparisons"][0]["sides"][1]["failure"] is None


def test_latency_has_a_timeout_too(run, fake):
    server = fake(lambda asked: Behaviour(first_s=0.0 if asked.body["max_tokens"] == 1 else 600.0))
    arguments = [server.url, "--timeout", 0.2, "--prompt-lens", 3, "-n", 1, "--output-len", 4]
    status, _, err = run("bench", "latency", *arguments, "--repeats", 1, "--warmup", 0, "--no-ceilings")
    assert status == 1
    assert "1 of 1 requests failed: timed out" in err


@pytest.mark.parametrize("is_chat", [False, True])
def test_one_that_has_nothing_but_chat(run, fake, is_chat):
    def choose(asked):
        return Behaviour(status=200 if asked.path.endswith("chat/completions") else 404)

    a, b = fake(choose), fake(choose)
    status, _, err = run("bench", "compare", *named(a=a, b=b), "--rounds", 1, *FEW, *["--chat"] * is_chat)
    assert status == (0 if is_chat else 1)
    assert ("if it has nothing but chat, give --chat" in err) is not is_chat


def test_chat_is_no_advice_where_nothing_is_listed(run, fake):
    a, b = (fake(lambda _: Behaviour(status=404), models=()) for _ in "ab")
    names = ("--model-name", "a=m", "--model-name", "b=m")
    status, _, err = run("bench", "compare", *named(a=a, b=b), *names, *FEW)
    assert status == 1
    assert "http 404" in err
    assert "--chat" not in err
