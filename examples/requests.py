"""What a request may ask for: samples, beams, an output of a given form, and many streams at once."""

import asyncio
import json

from octavo import LLM, AsyncEngine, SamplingParams


def samples(llm: LLM) -> None:
    """Four continuations of one prompt, which is computed once; and the best two of six."""
    four = SamplingParams(n=4, temperature=0.9, seed=1, max_tokens=12)
    for completion in llm.generate("My favourite colour is", four)[0].outputs:
        print(f"{completion.index}: {completion.text!r}")
    best = SamplingParams(n=2, best_of=6, temperature=0.9, seed=1, max_tokens=12)
    print("best:", [c.text for c in llm.generate("My favourite colour is", best)[0].outputs])


def beams(llm: LLM) -> None:
    """The likeliest continuations, by a search over four beams."""
    params = SamplingParams(use_beam_search=True, n=4, max_tokens=12)
    for completion in llm.generate("The capital of France is", params)[0].outputs:
        print(f"{completion.cumulative_logprob:.2f} {completion.text!r}")


def structured(llm: LLM) -> None:
    """An answer that a program can read, whatever the model would rather say."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "inhabitants": {"type": "integer", "minimum": 0, "maximum": 50_000_000},
        },
        "required": ["city", "inhabitants"],
        "additionalProperties": False,
    }
    params = SamplingParams(max_tokens=80, temperature=0, structured_outputs={"json_schema": schema})
    output = llm.generate("Paris as JSON: ", params)[0].outputs[0]
    print(json.loads(output.text))


async def streams(llm: LLM) -> None:
    """Three requests at once, each piece of text as it comes."""

    async def follow(engine: AsyncEngine, prompt: str) -> str:
        text = ""
        params = SamplingParams(max_tokens=16, temperature=0)
        async for delta in await engine.stream(prompt, params):
            text += delta.text
        return text

    async with AsyncEngine(llm) as engine:
        for text in await asyncio.gather(*(follow(engine, p) for p in ("One, two,", "Red, green,", "A, B,"))):
            print(repr(text))


if __name__ == "__main__":
    with LLM("smollm2", kv_memory="256MiB") as model:
        samples(model)
        beams(model)
        structured(model)
        asyncio.run(streams(model))
