"""Groups of options: seen by Typer, by files and by people as single options, by the command as one value."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from octavo.cli import options
from octavo.cli.option_groups import grouped
from octavo.core.errors import InvalidConfig


@dataclass(frozen=True, kw_only=True)
class Engine:
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, help="Workers.")] = 2
    fast: Annotated[bool, typer.Option("--fast/--slow", help="Hurry.")] = True

    def __post_init__(self) -> None:
        if self.threads == 13:
            raise InvalidConfig("threads=13: not on a Friday")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    as_json: options.AsJson = False
    title: Annotated[str, typer.Option()] = "none"
    besides: tuple[str, ...] = ("no option",)


FOUR_THREADS = Engine(threads=4)


def app_of(command: Callable[..., None]) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(grouped(command))
    return app


def run(command: Callable[..., None], *words: str) -> Result:
    return CliRunner().invoke(app_of(command), words)


def probe() -> tuple[list[object], Callable[..., None]]:
    """A command, and the list of what it is called with."""
    seen: list[object] = []

    def measure(
        context: typer.Context,
        model: Annotated[str, typer.Argument()] = "small",
        *,
        engine: Engine = Engine(threads=4),
        report: Report,
        config: options.Config = None,
    ) -> None:
        """Measure something."""
        seen.extend([context.info_name, model, engine, report])

    return seen, measure


def test_a_command_is_given_its_groups():
    seen, command = probe()
    result = run(command, "large", "-t", "3", "--slow", "--json", "--title", "x")
    assert (result.exit_code, result.output) == (0, "")
    assert seen[1:] == ["large", Engine(threads=3, fast=False), Report(as_json=True, title="x")]


def test_defaults_are_those_of_the_command_then_those_of_the_group():
    seen, command = probe()
    assert run(command).exit_code == 0
    assert seen[1:] == ["small", Engine(threads=4, fast=True), Report()]


def test_the_single_options_keep_names_texts_and_order():
    _, command = probe()
    made = get_command(app_of(command))
    assert (made.name, made.help) == ("measure", "Measure something.")
    assert [(p.name, p.opts, p.secondary_opts, p.default) for p in made.params] == [
        ("model", ["model"], [], "small"),
        ("threads", ["--threads", "-t"], [], 4),
        ("fast", ["--fast"], ["--slow"], True),
        ("as_json", ["--json"], [], False),
        ("title", ["--title"], [], "none"),
        ("config", ["--config"], [], None),
    ]
    assert [p.help for p in made.params if p.name in ("threads", "fast")] == ["Workers.", "Hurry."]


def test_limits_of_an_option_hold():
    seen, command = probe()
    assert run(command, "--threads", "0").exit_code == 2
    assert seen == []


def test_a_group_checks_before_the_command_begins():
    seen, command = probe()
    result = run(command, "--threads", "13")
    assert isinstance(result.exception, InvalidConfig)
    assert seen == []


def test_files_give_them_too(tmp_path):
    file = tmp_path / "octavo.toml"
    file.write_text('threads = 5\ntitle = "from a file"\n')
    seen, command = probe()
    result = run(command, "--config", str(file), "--title", "mine")
    assert (result.exit_code, result.output) == (0, "")
    assert seen[2:] == [Engine(threads=5), Report(title="mine")]
    file.write_text("threads = true\n")
    result = run(command, "--config", str(file))
    assert isinstance(result.exception, InvalidConfig)
    assert "threads" in str(result.exception)


def test_two_options_of_one_name_are_refused():
    def twice(*, engine: Engine, threads: int = 1) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'threads'"):
        grouped(twice)


def test_a_field_without_a_default_is_refused():
    @dataclass
    class Bare:
        size: int

    def bare(*, sizes: Bare) -> None: ...

    with pytest.raises(TypeError, match="size"):
        grouped(bare)


def test_a_group_may_be_called_like_one_of_its_options():
    seen = []

    def command(*, threads: Engine, report: Report) -> None:
        seen.append((threads, report))

    grouped(command)(threads=3, fast=True, as_json=False, title="x")
    assert seen == [(Engine(threads=3), Report(title="x"))]
