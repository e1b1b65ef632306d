import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_generate(capsys, smollm2_path):
    runpy.run_path(str(EXAMPLES / "generate.py"))
    out = capsys.readouterr().out
    assert "The capital of France is Paris" in out
    assert "The capital of Italy is Rome" in out
    assert "Once upon a time" in out


def test_requests(capsys, smollm2_path):
    runpy.run_path(str(EXAMPLES / "requests.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "3: '" in out
    assert "Paris" in out
    assert "'inhabitants': " in out
    assert "C, D, E" in out
