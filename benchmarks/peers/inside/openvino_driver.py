"""OpenVINO GenAI's continuous batching: FOLDER THREADS SEQUENCES KV_GIB."""

import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai
from lines import Lines


def main() -> None:
    lines = Lines()
    folder, *numbers = sys.argv[1:]
    threads, sequences, cache_gib = map(int, numbers)
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = cache_gib
    scheduler.max_num_seqs = sequences
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    pipeline = genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
    live = {}
    lines.say(ready=True)
    while True:
        arrived = lines.take(wait=not live)
        if arrived is None:
            return
        for asked in arrived:
            if lines.answer_texts(asked):
                continue
            config = genai.GenerationConfig()
            config.max_new_tokens = asked["max_tokens"]
            config.ignore_eos = True
            config.do_sample = False
            prompt = ov.Tensor(np.array([asked["prompt"]], np.int64))
            handle = pipeline.add_request(asked["id"], prompt, config)
            live[asked["id"]] = handle, [], len(asked["prompt"])
        pipeline.step()
        now = time.perf_counter()
        for number, (handle, chunks, prompt_len) in list(live.items()):
            while handle.can_read():
                new = sum(len(output.generated_ids) for output in handle.read().values())
                if new:
                    chunks.append([now, new])
            if handle.get_status() != genai.GenerationStatus.RUNNING:
                del live[number]
                lines.say(id=number, chunks=chunks, prompt_tokens=prompt_len)


if __name__ == "__main__":
    main()
