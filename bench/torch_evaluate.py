#!/usr/bin/env python3
"""Measures evaluations with transformers for bench/evaluate.sh, with the same weights and inputs.

    python3 bench/torch_evaluate.py FOLDER --tokens FILE --window N --stride N --batch_size N [--dtype bf16]
    python3 bench/torch_evaluate.py FOLDER --tasks FILE --batch_size N [--dtype bf16]

FOLDER was written by `megatron_cpp checkpoint export-hf`.
--tokens: FILE has token ids of a text. Each window of N tokens scores its last `stride` tokens, the first one all of them,
as in the guide "Perplexity of fixed-length models" of transformers, but with several windows per pass.
--tasks: FILE has contexts and continuations, which lm-evaluation-harness scores with its model class for transformers.
Prints one JSON line with the seconds, without loading, and the mean loss.
"""

import argparse
import json
import time

import torch
from transformers import AutoModelForCausalLM


def evaluate_text(args, dtype):
    """Returns the seconds, the number of scored tokens and their mean loss."""
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
        return time.perf_counter() - start, count, total / count


def evaluate_tasks(args, dtype):
    """Returns the seconds, the number of continuations and their mean loss."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=args.folder, dtype=dtype, device="cpu", batch_size=args.batch_size)
    requests = []
    for number, line in enumerate(open(args.tasks)):
        item = json.loads(line)
        requests += [
            Instance("loglikelihood", item, (item["context"], " " + continuation), index, ("task", number, 1))
            for index, continuation in enumerate(item["continuations"])
        ]
    model.loglikelihood(requests[: args.batch_size], disable_tqdm=True)
    start = time.perf_counter()
    scores = model.loglikelihood(requests, disable_tqdm=True)
    seconds = time.perf_counter() - start
    return seconds, len(scores), -sum(score for score, _ in scores) / len(scores)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    inputs = parser.add_mutually_exclusive_group(required=True)
    for name in ("tokens", "tasks"):
        inputs.add_argument(f"--{name}")
    for name in ("window", "stride", "batch_size"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    args = parser.parse_args()
    if args.batch_size is None or (args.tokens and None in (args.window, args.stride)):
        parser.error("--batch_size is required, and with --tokens also --window and --stride")

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    seconds, count, loss = (evaluate_tasks if args.tasks else evaluate_text)(args, dtype)
    print(json.dumps({"seconds": seconds, "scored": count, "loss": loss}))


if __name__ == "__main__":
    main()
