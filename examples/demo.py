"""The main job in one file: four prompts answered at once by a real model, then what it took.

Run by ``make demo``. Exits with 0 only if every prompt got text.
"""

import sys
import time

from rich.console import Console
from rich.panel import Panel

from octavo import LLM, SamplingParams

QUESTIONS = [
    "Explain in two sentences what a page table does.",
    "Write a short poem about paper.",
    "What is the capital of France, and what is it known for?",
    "Give me three tips for learning to cook.",
]


def main() -> int:
    console = Console()
    started = time.perf_counter()
    llm = LLM("smollm2", block_size=16)
    console.print(f"[dim]{llm.describe()}  (ready in {time.perf_counter() - started:.1f} s)[/dim]")
    conversations = [[{"role": "user", "content": question}] for question in QUESTIONS]
    outputs = llm.chat(conversations, SamplingParams(max_tokens=96, temperature=0))
    for question, output in zip(QUESTIONS, outputs, strict=True):
        console.print(Panel(output.outputs[0].text.strip(), title=question, title_align="left"))
    console.print(llm.last_run.summary())
    return 0 if all(output.outputs[0].text.strip() for output in outputs) else 1


if __name__ == "__main__":
    sys.exit(main())
