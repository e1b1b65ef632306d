"""The peers' common interface. Nothing is installed: commands are recorded in place of run."""

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from octavo.bench.compare.program import Program
from octavo.bench.compare.scenes import SCENES, as_task
from octavo.core.errors import OctavoError

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture(autouse=True)
def _modules(monkeypatch):
    monkeypatch.syspath_prepend(PEERS)


@pytest.fixture
def workshop(tmp_path):
    """A folder whose commands are noted; what they would make is made, empty."""
    from workshop import Workshop

    @dataclass(frozen=True, slots=True)
    class Recorded(Workshop):
        commands: list = field(default_factory=list)

        def run(self, command, *, cwd=None):
            self.commands.append(list(command))
            for part in command:
                if part.endswith(".part"):
                    Path(part).mkdir()
            if "download" in command:
                raise OctavoError("there is no network")

    return Recorded(tmp_path / "peers", say=lambda _: None)


def compiled(workshop):
    """As if llama.cpp had been compiled."""
    folder = workshop.environment("llama-cpp-native") / "build" / "bin"
    folder.mkdir(parents=True)
    for name in ("llama-server", "llama-quantize"):
        (folder / name).touch()


def everyone():
    from everyone import everyone

    return everyone("Q4_1 weights, bfloat16 KV", "Q4_1")


def loads():
    from scenes import load_of

    return [load_of(as_task(scene), 2) for scene in SCENES.values()]


def test_everyone_says_what_it_is():
    peers = everyone()
    names = [peer.name for peer in peers]
    assert len(set(names)) == len(names)
    assert names[0] == "octavo server"
    for peer in peers:
        assert peer.version
        assert peer.precision
        assert peer.settings


@pytest.mark.parametrize("index", range(10))
def test_a_peer_is_installed_and_can_be_started(workshop, tmp_path, index):
    peers = everyone()
    assert len(peers) == 10
    peer, model = peers[index], tmp_path / "model.Q4_1.gguf"
    compiled(workshop)
    peer.install(workshop, model)
    for load in loads():
        before = len(workshop.commands)
        program = peer.program(workshop, model, load)
        assert len(workshop.commands) == before, "starting must not install"
        assert isinstance(program, Program)
        assert program.facts.name == peer.name
        assert program.facts.precision == peer.precision
        assert ("{port}" in program.command) == (program.protocol == "openai")
        if not peer.name.startswith("octavo"):
            assert program.env["HF_HUB_OFFLINE"] == "1"
            assert program.command[0].startswith(str(workshop.folder))
    done = len(workshop.commands)
    peer.install(workshop, model)
    assert len(workshop.commands) == done, "the second time there is nothing to do"


def test_only_pip_fetches_anything(workshop, tmp_path):
    compiled(workshop)
    for peer in everyone():
        peer.install(workshop, tmp_path / "model.gguf")
    used = {Path(command[0]).name for command in workshop.commands}
    assert used <= {Path(sys.executable).name, "python", "optimum-cli", "llama-quantize"}
    installs = [c for c in workshop.commands if "install" in c]
    assert installs
    for command in installs:
        packages = command[command.index("--quiet") + 1 :]
        assert all(
            "==" in package or package in ("gguf", "accelerate", "safetensors") for package in packages
        )


def test_llama_cpp_gets_slots_with_room(workshop, tmp_path):
    compiled(workshop)
    peer = next(peer for peer in everyone() if peer.name == "llama.cpp Q4_0")
    for load in loads():
        command = peer.program(workshop, tmp_path / "model.gguf", load).command
        slots = int(command[command.index("--parallel") + 1])
        context = int(command[command.index("--ctx-size") + 1])
        assert slots == load.num_requests
        assert context // slots > load.longest


def test_llama_cpp_comes_with_both_ways_of_attention(workshop, tmp_path):
    compiled(workshop)
    forms = {peer.name: peer for peer in everyone() if peer.name.startswith("llama.cpp Q4_0")}
    load = loads()[0]
    flash, plain = (
        forms[name].program(workshop, tmp_path / "model.gguf", load)
        for name in ("llama.cpp Q4_0", "llama.cpp Q4_0 plain attention")
    )
    index = flash.command.index("--flash-attn") + 1
    assert (flash.command[index], plain.command[index]) == ("on", "off")
    assert [*plain.command[:index], "on", *plain.command[index + 1 :]] == flash.command
    assert flash.facts.settings.replace("flash", "no flash") == plain.facts.settings


def test_what_cannot_be_installed_is_told(workshop, tmp_path):
    from scenes import install

    present, absent = install(everyone(), workshop, tmp_path / "model.gguf")
    needs_compiler = [peer.name for peer in everyone() if peer.name.startswith("llama.cpp")]
    assert len(needs_compiler) == 4
    assert [peer.name for peer in present] == [p.name for p in everyone() if p.name not in needs_compiler]
    assert absent == dict.fromkeys(needs_compiler, "cannot be installed: there is no network")


def test_half_a_file_does_not_count(workshop):
    def fail(made):
        made.write_text("half")
        raise OctavoError("the disk is full")

    with pytest.raises(OctavoError, match="disk is full"):
        workshop.make("weights", fail)
    made = workshop.make("weights", lambda path: path.write_text("whole"))
    assert made.read_text() == "whole"


def test_a_failed_command_tells_its_last_words(tmp_path):
    from workshop import Workshop

    command = [sys.executable, "-c", "import os, sys; sys.exit('hub ' + os.environ['HF_HUB_OFFLINE'])"]
    with pytest.raises(OctavoError, match="failed with status 1: hub 1"):
        Workshop(tmp_path).run(command)
    with pytest.raises(OctavoError, match="cannot run /no/such/thing"):
        Workshop(tmp_path).run(["/no/such/thing"])


def test_start_is_a_context(workshop, tmp_path):
    from peer import Load, Peer

    from octavo.bench.load.exchange import Exchange

    script = tmp_path / "driver.py"
    script.write_text(
        "from lines import Lines\n"
        "lines = Lines()\n"
        "print('noise')\n"
        "lines.say(ready=True)\n"
        "while (arrived := lines.take(wait=True)) is not None:\n"
        "    for asked in arrived:\n"
        "        if not lines.answer_texts(asked):\n"
        "            lines.say(id=asked['id'], output_tokens=asked['max_tokens'], prompt_tokens=3)\n"
    )

    class Driven(Peer):
        def program(self, workshop, model, load):
            env = {"PYTHONPATH": str(PEERS / "inside")}
            command = [sys.executable, str(script)]
            return Program(facts=self.facts(), command=command, protocol="lines", env=env, timeout_s=30)

    peer = Driven(name="x", version="1", precision="p", settings="s")

    async def go():
        async with peer.start(workshop, tmp_path, Load(num_requests=1, longest=8, threads=1)) as running:
            pid = running._process.pid
            answered, refused = Exchange(), Exchange()
            from array import array

            await running.target.send(array("i", [1, 2, 3]), 5, answered)
            await running.target.send("a text", 5, refused)
            assert running.start_s > 0
            assert running.peak_rss_bytes() > 1 << 20
        return pid, answered, refused

    pid, answered, refused = asyncio.run(asyncio.wait_for(go(), 60))
    assert answered.failure is None
    assert (answered.output_tokens, answered.prompt_tokens) == (5, 3)
    assert refused.detail == "this driver takes token ids only"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_choosing():
    from scenes import choose

    peers = everyone()
    names = [peer.name for peer in choose(peers, ["vllm", "octavo server"], [])]
    assert names == ["octavo server", "vllm"]
    assert "vllm" not in [peer.name for peer in choose(peers, None, ["vllm"])]
    with pytest.raises(SystemExit, match="no peer is called vlmm"):
        choose(peers, ["vlmm"], [])


def test_programs_for_the_command_line(workshop, tmp_path, capsys):
    from scenes import write_programs

    from octavo.bench.compare.program import read_program

    compiled(workshop)
    tasks = [as_task(scene) for scene in SCENES.values()]
    model = tmp_path / "m.gguf"
    write_programs(everyone(), workshop, model, tasks, threads=2, folder=tmp_path / "programs")
    files = [Path(line) for line in capsys.readouterr().out.split("\n") if line]
    assert [read_program(file).facts.name for file in files] == [peer.name for peer in everyone()]


def test_a_report_does_not_tell_where_its_writer_lives():
    from scenes import without_home

    report = {
        "absent": {"x": "cannot be installed: /home/ann/.cache/octavo/peers/x/bin/python -m ... failed"},
        "sides": [{"model": "/home/ann/m.gguf", "rounds": [1.5, None, True], "note": "in /home/ann."}],
        "others": ["/home/annika/x", "/srv/home/ann/x", "see '/home/ann/y'", "/home/ann.old/z"],
    }
    assert without_home(report, Path("/home/ann")) == {
        "absent": {"x": "cannot be installed: ~/.cache/octavo/peers/x/bin/python -m ... failed"},
        "sides": [{"model": "~/m.gguf", "rounds": [1.5, None, True], "note": "in ~."}],
        "others": ["/home/annika/x", "/srv/home/ann/x", "see '~/y'", "/home/ann.old/z"],
    }
    assert without_home("/root/x", Path("/")) == "/root/x"


def test_installing_alone(workshop, tmp_path, monkeypatch, capsys):
    import scenes

    compiled(workshop)
    monkeypatch.setattr(scenes, "Workshop", lambda _: workshop)
    monkeypatch.setattr(scenes, "resolve", lambda _: tmp_path / "model.gguf")
    monkeypatch.setattr(scenes, "precision_for", lambda *_: "Q4_1")
    monkeypatch.setattr(scenes, "weights_of", lambda _: "Q4_1")
    monkeypatch.setattr(sys, "argv", ["scenes.py", "--install-only", "--only", "llama.cpp", "--only", "vllm"])
    with pytest.raises(SystemExit) as left:
        scenes.main()
    assert left.value.code == 0
    assert capsys.readouterr().out == "llama.cpp is there\nvllm is there\n"
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--only", "llama.cpp wheel Q4_0"])
    monkeypatch.setattr(workshop.__class__, "install", fail)
    with pytest.raises(SystemExit) as left:
        scenes.main()
    assert left.value.code == 1


def fail(*_, **__):
    raise OctavoError("there is no network")
