"""Continuous batching of transformers: FOLDER THREADS REQUESTS LONGEST."""

import queue
import sys
import threading

import torch
from lines import Lines
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

_PAGE = 256
_MOST_STEP = 512


def main() -> None:
    lines = Lines()
    folder, *numbers = sys.argv[1:]
    threads, requests, longest = map(int, numbers)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa")
    config = ContinuousBatchingConfig(
        page_size=_PAGE,
        num_blocks=requests * (longest // _PAGE + 2) + 4,
        max_batch_tokens=max(_MOST_STEP, requests),
    )
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.eval().init_continuous_batching(greedy, continuous_batching_config=config)
    manager.start()
    threading.Thread(target=_answer, args=(lines, manager), daemon=True).start()
    lines.say(ready=True)
    while (arrived := lines.take(wait=True)) is not None:
        for asked in arrived:
            if not lines.answer_texts(asked):
                manager.add_request(
                    asked["prompt"],
                    request_id=str(asked["id"]),
                    max_new_tokens=asked["max_tokens"],
                    record_timestamps=True,
                    eos_token_id=-1,
                )
    manager.stop(block=False)


def _answer(lines, manager) -> None:
    while True:
        try:
            found = manager.get_result(timeout=0.5)
        except queue.Empty:
            continue
        if found is None:
            continue
        number = int(found.request_id)
        if found.error is not None:
            lines.say(id=number, error=str(found.error))
            continue
        count = len(found.generated_tokens)
        chunks = [[moment, 1] for moment in (found.timestamps or [])[:count]]
        lines.say(id=number, chunks=chunks, output_tokens=count, prompt_tokens=len(found.prompt_ids))


if __name__ == "__main__":
    main()
