"""Options that say what is asked: what would have no effect is refused, by whatever command has it."""

import pytest
import typer

from octavo.cli import app
from octavo.cli.bench import unused_options
from octavo.cli.bench.unused_options import refuse_unused
from octavo.cli.bench.workload_making import make_vocabulary
from octavo.cli.tune import _ASKED, _arguments
from octavo.core.errors import InvalidConfig

TRACE = '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": [7]}\n'


def context_of(*command):
    """Of a command line whose first words name the command."""
    *above, name = [word for word in command if not word.startswith("-")][: 2 if command[0] == "bench" else 1]
    group = typer.main.get_command(app)
    context = typer.Context(group)
    for word in above:
        group = group.commands[word]
        context = typer.Context(group, parent=context)
    return group.commands[name].make_context(name, list(command[len(above) + 1 :]), parent=context)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--turns 3", "--turns has no effect with --workload synthetic"),
        ("--phrase-len 3", "--phrase-len has no effect with --workload synthetic"),
        ("--file x", "--file has no effect with --workload synthetic"),
        ("--max-prompt-tokens 3", "--max-prompt-tokens has no effect with --workload synthetic"),
        ("--text --vocab-size 30", "--vocab-size has no effect with --text"),
        ("--chat --text", "--text has no effect with --chat"),
        ("-w chat --shared-prefix 3", "--shared-prefix has no effect with --workload chat"),
        ("-w chat --vocab-size 30", "--vocab-size has no effect with --workload chat"),
        ("-w chat --limit 3", "--limit has no effect with --workload chat"),
        ("-w prompts --file x -n 3", "--requests has no effect with --workload prompts"),
        ("-w mooncake --file x --output-len 3", "--output-len has no effect with --workload mooncake"),
        ("-w azure --file x --input-len 3", "--input-len has no effect with --workload azure"),
        ("-w azure --file x --rate 3 --scale 2", "--scale has no effect with poisson arrivals"),
        ("-w azure --file x -c 3", "--concurrency has no effect with trace arrivals"),
        ("-w prompts --file x --burstiness 3", "--burstiness has no effect with trace or closed arrivals"),
        ("--rate 3 -c 4", "--concurrency has no effect with poisson arrivals"),
        ("--rate 3 --arrivals at-once", "--rate has no effect with at-once arrivals"),
        ("--scale 2", "--scale has no effect with closed arrivals"),
    ],
)
@pytest.mark.parametrize("command", [("bench", "serve", "http://127.0.0.1:1"), ("tune",)])
def test_options_without_effect_are_refused(run, command, arguments, told):
    named = ("-w", "synthetic") if "-w" not in arguments else ()
    status, _, err = run(*command, *named, *arguments.split())
    assert (status, err) == (1, f"octavo: {told}; leave it out\n")


def test_throughput_refuses_them_too(run):
    status, _, err = run("bench", "throughput", "--limit", 3)
    assert (status, err) == (1, "octavo: --limit has no effect with --workload synthetic; leave it out\n")
    status, _, err = run("bench", "throughput", "-w", "azure", "--file", "x", "--scale", 2)
    told = "--scale has no effect with requests that are all there at once"
    assert (status, err) == (1, f"octavo: {told}; leave it out\n")


@pytest.mark.parametrize(
    "arguments",
    [
        "-n 3 --input-len 3 --output-len 3 --shared-prefix 3 --vocab-size 30 -c 3",
        "-n 3 --text --arrivals bursty --rate 3 --burstiness 2",
        "-w repetitive --phrase-len 3",
        "-w chat --chat -n 3 --turns 3 --system-len 3 --pause 1 --rate 3",
        "-w prompts --file x --limit 3 --output-len 3 --scale 2 --max-prompt-tokens 3 --max-output-tokens 3",
        "-w prompts --file x -c 3",
        "-w mooncake --file x --scale 2 --vocab-size 30",
        "-w azure --file x --arrivals closed -c 2",
        "-w novel --turns 3",  # that is another error
    ],
)
def test_options_with_an_effect_are_taken(arguments):
    refuse_unused(context_of("bench", "serve", *arguments.split()))


def test_a_config_file_may_have_options_for_other_workloads(tmp_path):
    file = tmp_path / "octavo.toml"
    file.write_text("turns = 3\nconcurrency = 2\n")
    refuse_unused(context_of("bench", "serve", "--config", str(file), "--rate", "3"))


@pytest.mark.parametrize("kind", ["synthetic", "repetitive", "chat", "prompts", "mooncake", "azure"])
@pytest.mark.parametrize("more", ["", "--rate 2", "--arrivals closed", "--text", "--chat"])
def test_what_tune_passes_on_is_taken(kind, more):
    if "--text" in more and kind not in ("synthetic", "repetitive"):
        more = ""
    given = context_of("tune", "-w", kind, *more.split())
    passed = _arguments(given, set(_ASKED).difference(unused_options.unused(given.params)))
    taken = context_of("bench", "serve", *passed)
    refuse_unused(taken)
    unused = unused_options.unused(taken.params)
    for name in _ASKED:  # what has an effect there is what was said here
        assert name in unused or taken.params[name] == given.params[name]


def test_every_name_is_that_of_an_option():
    parameters = context_of("bench", "serve").params
    named = frozenset().union(*unused_options._OF_WORKLOAD.values(), *unused_options._OF_ARRIVALS.values())
    assert named <= set(parameters)
    assert "turns" in named


def test_a_vocabulary_is_no_larger_than_the_model_has():
    assert make_vocabulary(500, most=500).size == 500
    assert make_vocabulary(500).size == 500
    with pytest.raises(InvalidConfig, match="vocab_size=501: the model has 500 token ids"):
        make_vocabulary(501, most=500)


def test_vocabularies_beyond_32_bits_are_refused(run):
    status, _, err = run("bench", "serve", "http://127.0.0.1:1", "--vocab-size", 2**31)
    assert status == 2
    assert "2147483647" in err


@pytest.mark.parametrize(
    ("option", "text"), [("--context", "9" * 5000), ("--concurrency", "16777217"), ("--block-size", "8,,16")]
)
def test_numbers_of_a_sweep(run, tmp_path, option, text):
    status, _, err = run("bench", "sweep", "--journal", tmp_path / "j", option, text)
    assert (status, "write integers from" in err) == (1, True)


def test_a_malformed_file_is_one_line_on_standard_error(run, tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text(TRACE + TRACE.replace("9", "9" * 5000))
    for command in (("bench", "serve", "http://127.0.0.1:1"), ("tune", "--journal", tmp_path / "j")):
        status, out, err = run(*command, "-w", "mooncake", "--file", file)
        assert (status, out) == (1, "")
        assert err == f"octavo: {file}:2: has an integer of thousands of digits\n"
    assert not (tmp_path / "j").exists()
