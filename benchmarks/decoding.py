"""What drafts save and what beams cost, in ratios of runs that alternate.

python benchmarks/decoding.py --json
"""

import argparse
import json
import time
from statistics import median

from octavo import LLM, SamplingParams, _native
from octavo.bench.machine import describe

REPETITIVE = (
    "apples: 1 kg, pears: 2 kg, plums: 3 kg, apples: 1 kg, pears: 2 kg, plums: 3 kg, apples: 1 kg, pears:"
)
REPEATS = 5


def seconds(llm: LLM, prompt: str | list[int], params: SamplingParams) -> float:
    start = time.perf_counter()
    llm.generate(prompt, params, progress=False)
    return time.perf_counter() - start


def draft_speed_up(plain: LLM, drafting: LLM, prompt: str) -> float:
    """How many times as fast 128 tokens come with drafts."""
    params = SamplingParams(max_tokens=128, temperature=0, ignore_eos=True)
    right = plain.generate(prompt, params, progress=False)[0].outputs[0].token_ids
    assert drafting.generate(prompt, params, progress=False)[0].outputs[0].token_ids == right
    return median(seconds(plain, prompt, params) / seconds(drafting, prompt, params) for _ in range(REPEATS))


def beam_cost(llm: LLM, width: int) -> float:
    """Time of a search over ``width`` beams by that of one sequence, 129 tokens in and 64 out."""
    one = SamplingParams(max_tokens=64, temperature=0, ignore_eos=True)
    beams = SamplingParams(max_tokens=64, use_beam_search=True, n=width, ignore_eos=True)
    prompts = [[i, *range(200, 328)] for i in range(2 * REPEATS)]
    return median(
        seconds(llm, prompts[2 * i + 1], beams) / seconds(llm, prompts[2 * i], one) for i in range(REPEATS)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    memory = {"kv_memory": "256MiB"}
    with (
        LLM(arguments.model, **memory) as plain,
        LLM(arguments.model, speculative="ngram", **memory) as ngram,
    ):
        report = {
            "machine": describe(_native.usable_cores(), _native.isa()).as_dict(),
            "draft_speed_up_repetitive": draft_speed_up(plain, ngram, REPETITIVE),
            "draft_speed_up_story": draft_speed_up(plain, ngram, "Once upon a time"),
            "beam_8_cost": beam_cost(plain, 8),
        }
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print(
            f"drafts: {report['draft_speed_up_repetitive']:.2f} times as fast on repetitive text, "
            f"{report['draft_speed_up_story']:.2f} on a story; "
            f"8 beams cost {report['beam_8_cost']:.2f} sequences"
        )


if __name__ == "__main__":
    main()
