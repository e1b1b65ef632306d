"""The script that ``make setup`` runs first says what to install instead of failing half-way."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_tools.sh"


def run(path: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    env = {"PATH": str(path), "PYTHON": python}
    return subprocess.run(["/bin/sh", str(SCRIPT)], env=env, capture_output=True, text=True, check=False)


def link(folder: Path, name: str) -> None:
    (folder / name).symlink_to("/bin/true")


def test_all_there(tmp_path):
    link(tmp_path, "c++")
    assert run(tmp_path).returncode == 0


def test_no_compiler_names_the_package(tmp_path):
    result = run(tmp_path)
    assert result.returncode == 1
    assert "sudo apt-get install g++" in result.stderr


def test_a_compiler_named_in_the_environment_is_enough(tmp_path):
    link(tmp_path, "my-compiler")
    env = {"PATH": str(tmp_path), "PYTHON": sys.executable, "CXX": "my-compiler"}
    result = subprocess.run(["/bin/sh", str(SCRIPT)], env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0


def test_no_python_says_which_is_needed(tmp_path):
    link(tmp_path, "c++")
    result = run(tmp_path, python="no-such-python")
    assert result.returncode == 1
    assert "3.11" in result.stderr
    assert "no-such-python" in result.stderr


def test_an_old_python_is_named(tmp_path):
    link(tmp_path, "c++")
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" && exit 0\nexit 1\n')
    old.chmod(0o755)
    result = run(tmp_path, python=str(old))
    assert result.returncode == 1
    assert "Python 3.9.1" in result.stderr
