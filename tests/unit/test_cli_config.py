"""Options from a TOML file: --config."""

import json
import re
from pathlib import Path
from typing import Annotated

import pytest
import typer

from octavo.cli import app, config, options
from octavo.core.errors import InvalidConfig

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "octavo.toml"


@pytest.fixture
def probe(tmp_path, capsys):
    """Runs a command of a small application with a file's text; gives what its options were."""
    app = typer.Typer(pretty_exceptions_enable=False)
    group = typer.Typer()
    app.add_typer(group, name="group")

    @app.callback()
    def _root() -> None:
        pass

    @app.command()
    def first(
        *,
        name: Annotated[str, typer.Option("--name", "--other-name")] = "none",
        block_size: options.BlockSize = "16",
        count: int = 1,
        share: float = 0.5,
        max_context: int | None = None,
        flag: Annotated[bool, typer.Option("--flag/--no-flag")] = False,
        unsure: Annotated[bool | None, typer.Option("--unsure/--sure")] = None,
        stop: list[str] | None = None,
        numbers: list[int] | None = None,
        file: Path | None = None,
        as_json: Annotated[bool, typer.Option("--json")] = False,
        config: options.Config = None,
    ) -> None:
        found = {**locals(), "file": None if file is None else str(file)}
        found.pop("config")
        print(json.dumps(found))

    @group.command()
    def deep(count: int = 1, only: int = 0, config: options.Config = None) -> None:
        print(json.dumps({"count": count, "only": only}))

    @group.command()
    def other(count: int = 1, config: options.Config = None) -> None:
        print(json.dumps({"count": count}))

    def run(text: str, *arguments: str, name: str = "octavo.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        app(args=[*(arguments or ["first"]), "--config", str(path)], standalone_mode=False)
        return json.loads(capsys.readouterr().out)

    return run


def test_nothing_said_changes_nothing(probe):
    assert probe("") == {
        "name": "none",
        "block_size": "16",
        "count": 1,
        "share": 0.5,
        "max_context": None,
        "flag": False,
        "unsure": None,
        "stop": None,
        "numbers": None,
        "file": None,
        "as_json": False,
    }


def test_every_kind_of_value(probe):
    found = probe(
        """
        name = "a name"
        block-size = 32
        count = 7
        share = 1
        max_context = 100
        flag = true
        unsure = false
        stop = ["a", "b"]
        numbers = [1, 2]
        file = "somewhere"
        json = true
        """
    )
    assert found == {
        "name": "a name",
        "block_size": "32",
        "count": 7,
        "share": 1.0,
        "max_context": 100,
        "flag": True,
        "unsure": False,
        "stop": ["a", "b"],
        "numbers": [1, 2],
        "file": "somewhere",
        "as_json": True,
    }
    assert isinstance(found["share"], float)


def test_a_single_value_is_a_list_of_one_and_a_second_name_is_a_name(probe):
    found = probe('stop = "x"\nother-name = "y"')
    assert (found["stop"], found["name"]) == (["x"], "y")


def test_a_table_wins_over_the_top_and_the_command_line_over_both(probe):
    text = "count = 1\nshare = 0.1\nflag = true\nstop = ['top']\n[first]\ncount = 2\nstop = ['table']"
    found = probe(text)
    assert (found["count"], found["share"], found["flag"], found["stop"]) == (2, 0.1, True, ["table"])
    found = probe(text, "first", "--count", "3", "--no-flag", "--stop", "line")
    assert (found["count"], found["share"], found["flag"], found["stop"]) == (3, 0.1, False, ["line"])


def test_groups_have_tables_in_tables(probe):
    text = "count = 1\n[group]\ncount = 2\n[group.deep]\ncount = 3\nonly = 4"
    assert probe(text, "group", "deep") == {"count": 3, "only": 4}
    assert probe(text, "group", "other") == {"count": 2}
    assert probe(text)["count"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuont = 1", "unknown key 'cuont' at the top; known are name, other_name, block_size, count, "),
        ("[first]\nonly = 1", "unknown key 'only' in [first]; known are name, "),
        ("[group.deep]\nname = 'x'", "unknown key 'name' in [group.deep]; known are count, only"),
        ("[frist]\ncount = 1", "unknown table 'frist' at the top; known are first, group"),
        ("[group.depe]\ncount = 1", "unknown table 'depe' in [group]; known are deep, other"),
        ("[first.count]\na = 1", "unknown table 'count' in [first]"),
        ("first = 3", "unknown key 'first' at the top"),
        ("config = 'x'", "unknown key 'config' at the top"),
        ("help = true", "unknown key 'help' at the top"),
        ("count = 'x'", "key 'count' at the top: must be an integer"),
        ("count = true", "key 'count' at the top: must be an integer"),
        ("count = 1.0", "key 'count' at the top: must be an integer"),
        ("count = [1]", "key 'count' at the top: must be an integer"),
        ("share = '1'", "key 'share' at the top: must be a number"),
        ("share = false", "key 'share' at the top: must be a number"),
        ("name = 1", "key 'name' at the top: must be a text"),
        ("block-size = true", "key 'block-size' at the top: must be a text"),
        ("flag = 1", "key 'flag' at the top: must be true or false"),
        ("flag = 'true'", "key 'flag' at the top: must be true or false"),
        ("stop = [1]", "key 'stop' at the top: must be a list of which each is a text"),
        ("numbers = ['1']", "key 'numbers' at the top: must be a list of which each is an integer"),
        ("file = 2020-01-01", "key 'file' at the top: must be a text"),
        ("max-context = 1\nmax_context = 1", "'max_context' is given twice at the top"),
        ("count = ", "not TOML: "),
        ("count = 1\ncount = 2", "not TOML: "),
    ],
)
def test_errors_name_file_key_and_what_is_known(probe, text, message):
    with pytest.raises(InvalidConfig) as error:
        probe(text, name="my.toml")
    assert "my.toml: " in str(error.value)
    assert message in str(error.value)


def test_a_value_is_not_told_since_it_may_be_a_secret(run, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("[serve]\napi-key = 123456789")
    status, _, err = run("info", "--config", file)
    assert (status, err) == (
        1,
        f"octavo: {file}: key 'api-key' in [serve]: must be a list of which each is a text\n",
    )


def test_files_that_cannot_be_read(run, tmp_path):
    cases = [
        (tmp_path / "missing.toml", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ]
    for file, message in cases:
        assert run("info", "--config", file) == (1, "", f"octavo: cannot read {file}: {message}\n")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    status, out, err = run("info", "--config", binary)
    assert (status, out) == (1, "")
    assert err.startswith(f"octavo: {binary}: not TOML: ")


def test_a_mistake_for_another_command_is_a_mistake(run, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("[chat]\ntemprature = 1")
    status, out, err = run("models", "list", "--config", file)
    assert (status, out) == (1, "")
    assert "unknown key 'temprature' in [chat]; known are model, system, max_tokens, temperature" in err


def test_a_value_from_a_file_is_checked_as_that_of_the_command_line(run, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("temperature = -1")
    status, _, err = run("generate", "hi", "--config", file)
    assert (status, err) == (1, "octavo: temperature=-1.0: must be a number from 0 to 1e6\n")
    file.write_text("[bench.step]\nbatch = 0")  # checked by the command line itself, whose status is 2
    assert run("bench", "step", "--config", file)[0] == 2


def test_every_command_has_the_option():
    root = typer.main.get_command(app)
    leaves = list(config._leaves(root))
    assert len(leaves) > 10
    for command in leaves:
        assert "--config" in {name for parameter in command.params for name in parameter.opts}, command.name


def test_every_option_has_a_type_that_files_know():
    for command in config._leaves(typer.main.get_command(app)):
        expected = {
            parameter.opts[0].removeprefix("--").replace("-", "_")
            for parameter in command.params
            if parameter.param_type_name == "option"
        }
        found = config._options_of(command)
        assert found.keys() >= expected - {"config", "help"}
        assert {option.kind for option in found.values()} <= {bool, int, float, str}


def test_the_example_is_valid_with_its_comments_taken_in(run, tmp_path):
    text = EXAMPLE.read_text(encoding="utf-8")
    assert run("info", "--json", "--config", EXAMPLE)[0] == 0
    taken_in, count = re.subn(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE)
    assert count >= 2
    file = tmp_path / "all.toml"
    file.write_text(taken_in)
    status, _, err = run("info", "--json", "--config", file)
    assert (status, err) == (0, "")


def test_what_the_readme_shows_is_valid(run, tmp_path):
    found = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found
    for number, text in enumerate(found):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        assert run("info", "--json", "--config", file)[::2] == (0, "")
