"""What a shell offers, asked as a shell asks."""

import os
import subprocess
import sys

import pytest


def complete(line: str) -> list[str]:
    words = line.split(" ")
    result = subprocess.run(
        [sys.executable, "-m", "octavo"],
        env={
            **os.environ,
            "_OCTAVO_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("octavo ser", ["serve"]),
        ("octavo serve --kv-dtype ", ["auto", "bfloat16", "float16", "float32", "int8"]),
        ("octavo chat --activations i", ["int8"]),
        ("octavo serve --scheduling p", ["priority"]),
        ("octavo generate --speculative ", ["ngram"]),
        ("octavo serve --tool-parser h", ["hermes"]),
        ("octavo serve --reasoning-parser t", ["think"]),
        ("octavo serve --kv-m", ["--kv-memory"]),
        ("octavo bench throughput --kv-m", ["--kv-memory"]),
        ("octavo bench throughput --kv-dtype i", ["int8"]),
        ("octavo serve --model no-such", []),
        ("octavo models p", ["pull"]),
    ],
)
def test_commands_options_and_choices(line, offered):
    assert complete(line) == offered


@pytest.mark.parametrize("line", ["octavo serve --model smol", "octavo plan smol", "octavo models info smol"])
def test_models(line):
    assert "smollm2" in complete(line)


def test_models_in_the_cache(tmp_path, monkeypatch):
    cached = tmp_path / "octavo" / "models" / "mine"
    cached.mkdir(parents=True)
    (cached / "mine.gguf").write_bytes(b"GGUF")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert complete("octavo chat -m mi") == ["mine"]


def test_a_configuration_file_is_not_read_while_typing(tmp_path):
    (tmp_path / "broken.toml").write_text("what = ")
    line = f"octavo serve --config {tmp_path}/broken.toml --kv-dtype in"
    assert complete(line) == ["int8"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell):
    result = subprocess.run(
        [sys.executable, "-m", "octavo", "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0
    assert f"_OCTAVO_COMPLETE=complete_{shell}" in result.stdout


def test_completing_loads_nothing_heavy():
    code = (
        "import sys, octavo.cli; from octavo.cli.completion import complete_model; complete_model('s');"
        "print([name for name in ('numpy', 'fastapi', 'gguf', 'pydantic') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
