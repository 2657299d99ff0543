#!/usr/bin/env python3
"""Measures the evaluation of a text with transformers for bench/evaluate.sh with the same weights and windows.

    python3 bench/torch_evaluate.py FOLDER TOKENS --window N --stride N --batch_size N [--dtype bf16]

FOLDER was written by `megatron_cpp checkpoint export-hf`. TOKENS is a file with token ids. Each window of N tokens scores its last
`stride` tokens, the first one all of them, as in the guide "Perplexity of fixed-length models" of transformers, but with
several windows per pass. Prints one JSON line with the seconds, without loading, and the mean loss.
"""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("tokens")
    for name in ("window", "stride", "batch_size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    args = parser.parse_args()

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=dtype).eval()
    tokens = torch.tensor([int(word) for word in open(args.tokens).read().split()])
    window = args.window
    begins = list(range(0, len(tokens) - window, args.stride))

    def losses(batch):
        """Returns the sum of the losses of the scored tokens of windows, and their number."""
        inputs = torch.stack([tokens[begin : begin + window] for begin in batch])
        targets = torch.stack([tokens[begin + 1 : begin + window + 1] for begin in batch]).clone()
        for row, begin in enumerate(batch):
            if begin > 0:
                targets[row, : window - args.stride] = -100
        logits = model(inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        return loss.item(), int((targets >= 0).sum())

    with torch.inference_mode():
        losses(begins[: args.batch_size])
        start = time.perf_counter()
        total, count = 0.0, 0
        for first in range(0, len(begins), args.batch_size):
            loss, scored = losses(begins[first : first + args.batch_size])
            total, count = total + loss, count + scored
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "tokens": count, "loss": total / count}))


if __name__ == "__main__":
    main()
