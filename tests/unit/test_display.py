"""Nothing that a model's files say reaches the terminal as a command to it."""

import pytest

from octavo.cli import main, models
from octavo.core.display import counted, printable


def test_what_does_not_print_is_escaped():
    assert printable("plain é 漢 🙂 'text' \\") == "plain é 漢 🙂 'text' \\"
    assert printable("\x1b[31m\a\r\n\x9b\u202e\udcff") == "\\x1b[31m\\x07\\r\\n\\x9b\\u202e\\udcff"


def test_one_is_not_several():
    texts = [counted(number, "block") for number in (0, 1, 2, 4096)]
    assert texts == ["0 blocks", "1 block", "2 blocks", "4,096 blocks"]
    # Lengths are texts, and may be one.
    assert [counted(text, "token") for text in ("1", "16", "uniform:1,4")] == [
        "1 token",
        "16 tokens",
        "uniform:1,4 tokens",
    ]


def test_errors_are_escaped(tmp_path, capsys):
    directory = tmp_path / "evil\x1b]0;title\a"
    directory.mkdir()
    with pytest.raises(SystemExit):
        main(["models", "info", str(directory)])
    errors = capsys.readouterr().err
    assert "evil\\x1b]0;title\\x07 holds no model" in errors
    assert errors[:-1].isprintable()


def test_models_info_is_escaped_and_free_of_markup(capsys):
    found = {
        "path": "a[bold]b\x1b[31m.gguf",
        "format": "gguf",
        "family": "llama\x1b[0m",
        "num_layers": 1,
        "hidden_size": 1,
        "intermediate_size": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 1,
        "sliding_windows": [],
        "context_len": 1,
        "vocab_size": 1,
        "tied_embeddings": False,
        "encodings": {"Q\x1b[2J": {"num_tensors": 1, "num_bytes": 1}},
        "weight_bytes": 1,
        "kv_bytes_per_token": {"float32": 1},
        "kv_block_bytes": 1,
        "kv_padding": 0.0,
        "kv_groups": [{"block_size": 16, "layers": "0", "window": None, "num_tables": 1}],
    }
    models._show(found)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    for text in ("a[bold]b\\x1b[31m.gguf", "llama\\x1b[0m", "Q\\x1b[2J"):
        assert text in out


def test_models_list_is_escaped(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "octavo" / "models" / "toy-1.0-0" / "x\x1b[2J[red].gguf"
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(SystemExit):
        main(["models", "list"])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "x\\x1b[2J[red].gguf" in out.replace("\n", "").replace(" ", "")
