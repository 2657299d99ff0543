#!/usr/bin/env python3
"""Measures generate() of transformers for bench/generate.sh with the same weights.

    python3 bench/torch_generate.py FOLDER --prompts N --prompt_tokens N --new_tokens N --batch_size N [--dtype bf16]

FOLDER was written by `megatron_cpp checkpoint export-hf`. Prompts are random tokens, decoding is greedy with a KV cache. Prints one JSON
line with the seconds for all prompts, without loading.
"""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    for name in ("prompts", "prompt_tokens", "new_tokens", "batch_size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    args = parser.parse_args()

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=dtype).eval()
    torch.manual_seed(1)
    prompts = torch.randint(model.config.vocab_size, (args.prompts, args.prompt_tokens))

    def generate(batch, tokens):
        model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
            pad_token_id=0,
        )

    with torch.inference_mode():
        generate(prompts[: args.batch_size], 2)
        begin = time.perf_counter()
        for first in range(0, args.prompts, args.batch_size):
            generate(prompts[first : first + args.batch_size], args.new_tokens)
        print(json.dumps({"seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
