"""Measures scaled_dot_product_attention of PyTorch on a CPU for bench/attention_vs_torch.sh: causal, within documents, with a window.

If PyTorch has several implementations, reports the fastest one. Prints one JSON line.
"""

import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F


def timed(repeats, warmup, forward, inputs, dout):
    forwards, backwards = [], []
    for run in range(warmup + repeats):
        for x in inputs:
            x.grad = None
        begin = time.perf_counter()
        out = forward()
        middle = time.perf_counter()
        out.backward(dout)
        end = time.perf_counter()
        if run >= warmup:
            forwards.append(middle - begin)
            backwards.append(end - middle)
    return statistics.median(forwards), statistics.median(backwards)


def implementations(args, q, k, v):
    """Returns functions by name that compute attention of [1, heads, seq, dim] with different implementations."""
    attend = F.scaled_dot_product_attention
    if args.document == 0 and args.window == 0:
        return {"is_causal": lambda: attend(q, k, v, is_causal=True)}
    at = torch.arange(args.seq)
    mask = at[:, None] >= at[None, :]
    if args.window > 0:
        mask &= at[:, None] - at[None, :] < args.window
    if args.document > 0:
        mask &= at[:, None] // args.document == at[None, :] // args.document
    result = {"mask": lambda: attend(q, k, v, attn_mask=mask)}
    if args.window == 0 and args.seq % args.document == 0:

        def documents(x):  # [1, heads, seq, dim] -> [documents, heads, document, dim]
            return x.view(args.heads, -1, args.document, args.dim).transpose(0, 1)

        def in_a_batch():
            out = attend(documents(q), documents(k), documents(v), is_causal=True)
            return out.transpose(0, 1).reshape(1, args.heads, args.seq, args.dim)

        result["documents as a batch"] = in_a_batch
    return result


def main():
    parser = argparse.ArgumentParser()
    for name, value in dict(seq=8192, heads=8, dim=64, document=0, window=0, threads=2, repeats=3, warmup=1).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    q, k, v, dout = (torch.randn(1, args.heads, args.seq, args.dim).to(dtype) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    times = {name: timed(args.repeats, args.warmup, implementation, inputs, dout) for name, implementation in implementations(args, *inputs).items()}
    best = min(times, key=lambda name: sum(times[name]))
    print(json.dumps({"torch": torch.__version__, "way": best, "forward_s": times[best][0], "backward_s": times[best][1],
                      "all": times}))


main()
