"""The script that every build runs on its kernels: an object exports its table and nothing else."""

import shutil
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_exports.sh"
TABLE = """
namespace octavo {
extern const int kernels_fast;
const int kernels_fast = 1;
}
"""


def check(folder: Path, *sources: str) -> subprocess.CompletedProcess[str]:
    """The script's verdict on objects of these sources."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    assert compiler, "the extension was built with a C++ compiler"
    objects = []
    for i, source in enumerate(sources):
        objects.append(str(folder / f"{i}.o"))
        (folder / f"{i}.cpp").write_text(source)
        subprocess.run([compiler, "-c", "-O1", str(folder / f"{i}.cpp"), "-o", objects[-1]], check=True)
    command = ["/bin/sh", str(SCRIPT), "nm", *objects]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_table_alone_is_right(tmp_path):
    result = check(tmp_path, TABLE + "namespace { [[maybe_unused]] int hidden() { return 2; } }")
    assert (result.returncode, result.stderr) == (0, "")


def test_an_inline_function_is_named(tmp_path):
    leaky = TABLE + "inline int leaked(int x) { return x + 1; }\nint (*volatile use)(int) = leaked;"
    result = check(tmp_path, TABLE, leaky)
    assert result.returncode == 1
    assert "1.o" in result.stderr
    assert "leaked" in result.stderr
    assert "0.o" not in result.stderr


def test_a_template_is_named(tmp_path):
    leaky = TABLE + "template <class T> T twice(T x) { return 2 * x; }\nint (*volatile use)(int) = twice;"
    result = check(tmp_path, leaky)
    assert result.returncode == 1
    assert "twice" in result.stderr


def test_no_table_is_an_error(tmp_path):
    assert check(tmp_path, "int nothing;").returncode == 1


def test_no_object_file_is_an_error(tmp_path):
    command = ["/bin/sh", str(SCRIPT), "nm", str(tmp_path / "missing.o")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1
