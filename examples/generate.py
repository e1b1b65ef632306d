"""Generate for several prompts at once; they share what their beginnings have in common."""

from octavo import LLM, SamplingParams

llm = LLM("smollm2")
prompts = ["The capital of France is", "The capital of Italy is", "Once upon a time"]
for output in llm.generate(prompts, SamplingParams(max_tokens=16, temperature=0)):
    print(output.prompt + output.outputs[0].text)
