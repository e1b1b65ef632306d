"""A GGUF file as a folder with safetensors in bfloat16: FILE FOLDER."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> None:
    file, made = Path(sys.argv[1]), sys.argv[2]
    source = {"gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **source)
    config = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, dtype=torch.bfloat16, quantization_config=config, **source
    ).to(torch.bfloat16)
    model.save_pretrained(made)
    tokenizer.save_pretrained(made)


if __name__ == "__main__":
    main()
