"""What the README shows of the examples is what they are, and what they print."""

import re
import runpy
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_memory_section_shows_the_example_and_its_output(capsys):
    section = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("## Memory\n")[2].partition("\n## ")[0]
    )
    code, output = re.search(
        r"```python\n(.*?)```\n\nand prints\n\n```\n(.*?)```", section, re.DOTALL
    ).groups()
    example = (ROOT / "examples" / "memory_only.py").read_text(encoding="utf-8")
    function, body = code.partition("def serve")[2].split("\n\n\n")
    assert function in example
    assert textwrap.indent(body, "    ") in example
    runpy.run_path(str(ROOT / "examples" / "memory_only.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith(output)
