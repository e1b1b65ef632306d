"""Ctrl-C before the command line has been read."""

import subprocess
import sys

import pytest

# As if the key were pressed when a module is looked for.
PROGRAM = """
import runpy, sys

class Key:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Key())
runpy.run_module("octavo", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["octavo.cli", "typer", "octavo.cli.bench.compare"])
def test_it_ends_in_silence_while_modules_are_read(module):
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, module], capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")
