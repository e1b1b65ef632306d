"""Help as it is read on a narrow terminal."""

import re

import pytest
import typer

from octavo.cli import app, main


def commands(command=None, path=()):
    """All, with the words that call them."""
    command = command or typer.main.get_command(app)
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))


def help_of(path, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as leaving:
        main([*path, "--help"])
    assert leaving.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_names_are_whole(path, command, width, monkeypatch, capsys):
    lines = help_of(path, width, monkeypatch, capsys).splitlines()
    assert max(map(len, lines)) <= width
    # Where options are defined, and not where a text speaks of them.
    defined = {name for line in lines if re.match(r"\W{2,4}-", line) for name in re.findall(r"-[\w-]+", line)}
    for parameter in command.params:
        if parameter.opts[0].startswith("-"):
            assert defined.issuperset((*parameter.opts, *parameter.secondary_opts))
    listed = {line.split()[0] for line in lines if re.match(r"\W{2,4}\w", line)}
    assert listed.issuperset(getattr(command, "commands", {}))


def test_what_commands_do_is_told_in_whole_sentences(monkeypatch, capsys):
    text = " ".join(help_of(("bench",), 60, monkeypatch, capsys).split())
    told = "compare Compare engines: the same requests to each in turn, round after round; ratios with"
    assert f"{told} intervals. scenes" in text


@pytest.mark.parametrize(("path", "command"), list(commands()))
def test_no_docstring_leaks(path, command, monkeypatch, capsys):
    """Whoever reads help calls no function."""
    words = help_of(path, 80, monkeypatch, capsys).split()
    assert not {"Args:", "Raises:", "Returns:", "Yields:", "Attributes:"}.intersection(words)
