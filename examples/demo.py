"""The main job in one file: four prompts answered at once by a real model, then what it took.

Run by ``make demo``. Exits with 0 only if every prompt got text.
"""

import sys
import time

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from octavo import LLM, SamplingParams
from octavo.cli.generate import summary

QUESTIONS = [
    "What is gravity?",
    "Explain what virtual memory is to a child.",
    "Write a haiku about the sea.",
    "What does a librarian do?",
]


def main() -> int:
    console = Console(highlight=False)
    started = time.perf_counter()
    with LLM("smollm2") as llm:
        console.print(f"[dim]Model ready in {time.perf_counter() - started:.1f} s[/dim]")
        conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
        started = time.perf_counter()
        outputs = llm.chat(conversations, SamplingParams(max_tokens=96, temperature=0))
        elapsed_s = time.perf_counter() - started
        for question, output in zip(QUESTIONS, outputs, strict=True):
            text = output.outputs[0].text.strip()
            console.print(Panel(Text(text), title=Text(question), title_align="left"))
        console.print(Text(summary(llm, outputs, elapsed_s), style="cyan"))
    return 0 if all(output.outputs[0].text.strip() for output in outputs) else 1


if __name__ == "__main__":
    sys.exit(main())
