"""Trains Hugging Face's Mixtral in PyTorch for bench/moe.sh, with fused AdamW, autocast, and torch.compile if it compiles. Prints
one JSON line.

  python3 bench/torch_mixtral.py --layers 6 --hidden 384 --heads 6 --ffn 768 --vocab 8192 --seq 256 --batch 8 --compile"""
import argparse
import json
import os
import resource
import statistics
import time

import torch
import transformers


def main():
    a = argparse.ArgumentParser()
    for name, default in dict(layers=6, hidden=384, heads=6, ffn=768, experts=8, topk=2, vocab=8192, seq=256, batch=8, steps=5, warmup=2).items():
        a.add_argument("--" + name, type=int, default=default)
    a.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32", help="bf16 = autocast, fp32 master weights")
    a.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a.add_argument("--compile", action="store_true")
    o = a.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(o.threads)
    config = transformers.MixtralConfig(
        num_hidden_layers=o.layers, hidden_size=o.hidden, num_attention_heads=o.heads, num_key_value_heads=o.heads, intermediate_size=o.ffn,
        num_local_experts=o.experts, num_experts_per_tok=o.topk, vocab_size=o.vocab, max_position_embeddings=o.seq, sliding_window=None,
        output_router_logits=True, router_aux_loss_coef=0.01, use_cache=False, tie_word_embeddings=True)
    model = transformers.MixtralForCausalLM(config)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = torch.compile(model) if o.compile else model
    data = [torch.randint(0, o.vocab, (o.batch, o.seq)) for _ in range(4)]
    times = []
    for i in range(o.warmup + o.steps):
        t0 = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bf16"):
            loss = step_model(input_ids=data[i % 4], labels=data[i % 4]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if i >= o.warmup:
            times.append(time.perf_counter() - t0)
    sec = statistics.median(times)
    print(json.dumps(dict(peer=f"pytorch {torch.__version__}, transformers {transformers.__version__}", dtype=o.dtype, compile=o.compile,
                          parameters=sum(p.numel() for p in model.parameters()), tokens_per_step=o.batch * o.seq, step_s=round(sec, 4),
                          tokens_per_s=round(o.batch * o.seq / sec, 1), threads=o.threads,
                          peak_gib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3), loss=round(loss.item(), 4))))


if __name__ == "__main__":
    main()
