#!/usr/bin/env python3
"""Measures torch.distributed.checkpoint for bench/checkpoint.sh: saves and loads GPT-2 124M with the state of AdamW.

    python3 -m torch.distributed.run --nproc_per_node RANKS bench/torch_checkpoint.py FOLDER [--rounds N]

Weights and moments in fp32 are sharded by rows over the ranks as DTensors. Rank 0 prints one JSON line per round with the times of the
slowest rank. Files are evicted from the page cache before they are read.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def shapes():
    """Yields names and shapes of the parameters of bench/gpt2_124m.toml."""
    h, vocab, positions = 768, 50304, 1024
    yield "embedding.word_embeddings.weight", (vocab, h)
    yield "embedding.position_embeddings.weight", (positions, h)
    for layer in range(12):
        base = f"decoder.layers.{layer}."
        for name, rows, columns in [("qkv", 3 * h, h), ("proj", h, h), ("fc1", 4 * h, h), ("fc2", h, 4 * h)]:
            yield f"{base}{name}.weight", (rows, columns)
            yield f"{base}{name}.bias", (rows,)
        for norm in ("ln_1", "ln_2"):
            for part in ("weight", "bias"):
                yield f"{base}{norm}.{part}", (h,)
    for part in ("weight", "bias"):
        yield f"decoder.final_layernorm.{part}", (h,)


def make_state(mesh):
    return {f"{kind}/{name}": distribute_tensor(torch.randn(shape), mesh, [Shard(0)])
            for kind in ("model", "exp_avg", "exp_avg_sq") for name, shape in shapes()}


def of_slowest(seconds):
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()


def timed(f):
    dist.barrier()
    start = time.perf_counter()
    result = f()
    return of_slowest(time.perf_counter() - start), result


def evict(folder):
    for path in Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder")
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()

    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    torch.manual_seed(1)
    state = make_state(init_device_mesh("cpu", (ranks,)))
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    for _ in range(options.rounds):
        waited, beside = f"{options.folder}/dcp", f"{options.folder}/dcp_async"
        save, _ = timed(lambda: dcp.save(state, checkpoint_id=waited))
        stall, future = timed(lambda: dcp.async_save(state, checkpoint_id=beside))
        rest, _ = timed(future.result)
        if rank == 0:
            evict(options.folder)
        load, _ = timed(lambda: dcp.load(state, checkpoint_id=waited))
        dist.barrier()
        if rank == 0:
            print(json.dumps({"torch": torch.__version__, "ranks": ranks, "bytes": size, "save_s": save,
                              "async_stall_s": stall, "async_total_s": stall + rest, "load_s": load}), flush=True)
            shutil.rmtree(waited)
            shutil.rmtree(beside)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
