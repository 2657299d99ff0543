"""Writes tests/golden/llama/masked.h5: loss and gradients of packed documents with a loss mask, computed by transformers
in double precision, for masked_loss_test.cpp.

usage: make_masked_loss_golden.py tests/golden/llama     (a Python with torch, transformers and h5py)

Documents do not attend to each other and restart positions. Prompts, the first tokens of documents and all of the last
sample have the label -100, which is stored as -1.
"""

import random
import sys

import h5py
import torch
from transformers import LlamaForCausalLM


def main():
    folder = sys.argv[1]
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    with h5py.File(f"{folder}/expected.h5") as file:
        tokens = torch.tensor(file["tokens"][0], dtype=torch.long)  # [batch, seq + 1]
    inputs, labels = tokens[:, :-1], tokens[:, 1:].clone()
    batch, seq = inputs.shape
    starts = torch.zeros(batch, seq, dtype=torch.long)
    rng = random.Random(3)
    for b in range(batch):
        begin = 0
        while begin < seq:
            end = min(seq, begin + rng.randint(3, 14))
            starts[b, begin:end] = begin
            labels[b, begin:begin + rng.randint(0, 5)] = -100  # the prompt
            labels[b, end - 1] = -100  # belongs to the next document
            begin = end
    labels[-1] = -100
    at = torch.arange(seq)
    is_visible = (at[:, None] >= at[None, :]) & (starts[:, :, None] == starts[:, None, :])
    mask = torch.zeros(batch, 1, seq, seq, dtype=torch.float64).masked_fill(~is_visible[:, None], float("-inf"))
    logits = model(input_ids=inputs, attention_mask=mask, position_ids=at - starts).logits
    loss = model.loss_function(logits=logits, labels=None, shift_labels=labels, vocab_size=model.config.vocab_size)
    loss.backward()
    squares = sum(p.grad.square().sum() for p in model.parameters())
    with h5py.File(f"{folder}/masked.h5", "w") as file:
        file["labels"] = torch.where(labels < 0, -1, labels).to(torch.int32).numpy()
        file["starts"] = starts.to(torch.int32).numpy()
        file["loss"] = loss.item()
        file["grad_norm"] = squares.sqrt().item()
        for name, param in model.named_parameters():
            if name in ("model.norm.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj.weight"):
                file[f"grads/{name}"] = param.grad.numpy()
    print((labels >= 0).sum().item(), "targets, loss", loss.item(), "norm", squares.sqrt().item())


if __name__ == "__main__":
    main()
