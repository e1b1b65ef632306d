"""Recordings: what was decided is decided again without a model, and a change is found."""

import json
from pathlib import Path

import numpy as np
import pytest
from toy import EOS, ToyEngine, random_prompts

from octavo.cli import main
from octavo.core.errors import InvalidConfig
from octavo.core.sampling import SamplingParams
from octavo.scheduling.recording import CorruptRecording, replay


def record(path: Path, *, seed: int = 1, **options) -> ToyEngine:
    """Everything there is: forks, beams, drafts, priorities, preemption, aborts, stops, failures."""
    rng = np.random.default_rng(seed)
    toy = ToyEngine(**{"num_blocks": 30, "max_num_seqs": 6, "max_step_tokens": 24, **options}, record=path)
    generations = []
    for i, prompt in enumerate(random_prompts(14, seed=seed, longest=30)):
        params = {
            0: {"temperature": 0.9, "n": 3},
            1: {"use_beam_search": True, "n": 3},
            2: {"temperature": 0.0, "prompt_logprobs": 1},
            3: {"temperature": 0.0, "stop": ["a"]},
        }.get(i % 5, {"temperature": 0.0})
        generation = toy.engine.prepare(
            prompt, SamplingParams(max_tokens=20, seed=i, **params), priority=i % 3, salt="ab"[i % 2]
        )
        toy.engine.submit(generation)
        generations.append(generation)
        for _ in range(int(rng.integers(0, 4))):
            toy.step()
        if i == 9:
            toy.engine.abort(generations[7])
    toy.run()
    toy.scheduler.close()
    return toy


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scheduling": "priority"},
        {"speculative": "ngram"},
        {"prefix_cache": False},
        {"max_num_seqs": 2, "num_blocks": 24},
    ],
)
def test_replay_decides_the_same(tmp_path, seed, options):
    toy = record(tmp_path / "log", seed=seed, **options)
    report = replay(tmp_path / "log")
    assert report.difference is None
    stats = toy.scheduler.stats()
    assert (report.num_steps, report.num_preemptions) == (stats.num_steps, stats.num_preemptions)
    assert report.num_tokens == sum(toy.model.step_sizes)


def test_a_recording_says_which_tokens_are_equal_but_not_what_they_are(tmp_path):
    toy = ToyEngine(record=tmp_path / "log")
    toy.run(toy.submit([40, 50, 40, EOS - 1], max_tokens=1))
    toy.scheduler.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert lines[1]["add"]["tokens"] == [0, 1, 0, 2]


def test_a_changed_decision_is_found(tmp_path, capsys):
    record(tmp_path / "log")
    lines = (tmp_path / "log").read_text().splitlines()
    place, event = next(
        (i, json.loads(line)) for i, line in enumerate(lines) if i > 30 and line.startswith('{"plan"')
    )
    event["plan"]["work"][0][2] += 1
    lines[place] = json.dumps(event)
    (tmp_path / "log").write_text("\n".join(lines))
    report = replay(tmp_path / "log")
    assert report.difference is not None
    assert f"(line {place + 1}): work was" in report.difference
    with pytest.raises(SystemExit) as exited:
        main(["replay", str(tmp_path / "log"), "--json"])
    assert exited.value.code == 1
    assert json.loads(capsys.readouterr().out)["difference"] == report.difference


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "not a recording of version 1: None"),
        (lambda lines: ["[]"], "line 1: not an object"),
        (lambda lines: ['{"octavo_recording": 2}'], "not a recording of version 1: 2"),
        (lambda lines: ['{"octavo_recording": 1}'], "the settings in line 1"),
        (lambda lines: [*lines[:5], lines[5][:-3]], "line 6: not JSON"),
        (lambda lines: [*lines[:5], '{"finish": 99, "reason": "stop"}'], "line 6: KeyError"),
        (lambda lines: [*lines[:5], "{}"], "line 6: .*unknown event"),
        (lambda lines: [*lines[:5], '{"ranks": "x"}'], "line 6: 'x' is no rank"),
        (lambda lines: [*lines[:5], '{"add": 7}'], "line 6: TypeError"),
        (lambda lines: [*lines[:5], "[" * 100_000], "line 6: not JSON"),
        (lambda lines: [*lines[:5], "\udcff"], "line 6: not JSON"),
    ],
)
def test_no_recording(tmp_path, change, message):
    record(tmp_path / "log")
    lines = (tmp_path / "log").read_text().splitlines()
    (tmp_path / "log").write_bytes("\n".join(change(lines)).encode(errors="surrogateescape"))
    with pytest.raises(CorruptRecording, match=message):
        replay(tmp_path / "log")


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(InvalidConfig, match="No such file or directory"):
        ToyEngine(record=tmp_path / "nowhere" / "log")


def test_a_full_disk_ends_the_recording_and_nothing_else():
    toy = ToyEngine(record=Path("/dev/full"))
    generations = [toy.submit([i] * 200, max_tokens=40, ignore_eos=True) for i in range(8)]
    with pytest.warns(RuntimeWarning, match=r"recording ended: .*No space left"):
        outputs = toy.run(*generations)
    toy.scheduler.close()
    assert [len(tokens) for tokens in outputs] == [40] * 8
