"""Writes tests/golden/mup/{untied,tied}.h5: a small GPT with the maximal update parametrization of the package mup, its
initial weights, and losses and weights of twelve steps of MuAdamW in double precision, for golden_mup_test.cpp.

usage: make_mup_golden.py FOLDER     (a Python with torch, h5py and mup 1.0.0; FOLDER is tests/golden)
"""

import math
import pathlib
import sys

import h5py
import mup
import torch
from torch import nn

BASE, WIDTH, HEADS, LAYERS, VOCAB, LENGTH = 8, 24, 2, 2, 16, 12
STEPS, BATCH, LR, WEIGHT_DECAY = 12, 4, 1e-2, 0.1


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.input_layernorm, self.pre_mlp_layernorm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.linear_qkv, self.linear_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear_fc1, self.linear_fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        dim = width // HEADS
        q, k, v = self.linear_qkv(self.input_layernorm(x)).view(batch, length, HEADS, 3, dim).transpose(1, 2).unbind(3)
        # Standard attention at the base width, and 1 / dim instead of 1 / sqrt(dim) beyond it.
        scores = q @ k.transpose(-1, -2) * math.sqrt(BASE // HEADS) / dim
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        y = scores.masked_fill(mask, -torch.inf).softmax(-1) @ v
        x = x + self.linear_proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.linear_fc2(nn.functional.gelu(self.linear_fc1(self.pre_mlp_layernorm(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, width, is_tied):
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(VOCAB, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.final_layernorm = nn.LayerNorm(width)
        self.output_layer = (mup.MuSharedReadout(self.word_embeddings.weight, bias=False) if is_tied else
                             mup.MuReadout(width, VOCAB, bias=False))

    def forward(self, tokens):
        x = self.word_embeddings(tokens) + self.position_embeddings.weight
        for layer in self.layers:
            x = layer(x)
        return self.output_layer(self.final_layernorm(x))


def our_name(name):
    """Returns Megatron-LM's name of a parameter."""
    module, kind = name.rsplit(".", 1)
    if module.startswith("layers."):
        _, index, part = module.split(".")
        group = {"linear_qkv": "self_attention.", "linear_proj": "self_attention.",
                 "linear_fc1": "mlp.", "linear_fc2": "mlp."}.get(part, "")
        return f"decoder.layers.{index}.{group}{part}.{kind}"
    return {"word": "embedding.", "posi": "embedding.", "fina": "decoder.", "outp": ""}[name[:4]] + name


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    for is_tied in (False, True):
        torch.manual_seed(7)
        model = Gpt(WIDTH, is_tied)
        mup.set_base_shapes(model, Gpt(BASE, is_tied), delta=Gpt(2 * BASE, is_tied))
        for name, param in model.named_parameters():
            if "layernorm" not in name:
                nn.init.normal_(param, std=0.1)
        tokens = torch.randint(VOCAB, (STEPS * BATCH, LENGTH + 1))
        tokens[:, 1::2] = (tokens[:, :-1:2] * 5 + 3) % VOCAB  # every second token can be predicted
        with h5py.File(folder / ("tied.h5" if is_tied else "untied.h5"), "w") as file:
            file["tokens"] = tokens.int().numpy()
            for name, param in model.named_parameters():
                file["initial/" + our_name(name)] = param.detach().numpy()
            decaying = [p for p in model.parameters() if p.dim() > 1]
            rest = [p for p in model.parameters() if p.dim() == 1]
            optimizer = mup.MuAdamW([dict(params=decaying, weight_decay=WEIGHT_DECAY), dict(params=rest, weight_decay=0.0)],
                                    lr=LR, betas=(0.9, 0.999), eps=1e-16)
            losses = []
            for step in range(STEPS):
                batch = tokens[step * BATCH:(step + 1) * BATCH]
                loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten().long())
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.item())
            file["losses"] = losses
            for name, param in model.named_parameters():
                file["final/" + our_name(name)] = param.detach().numpy()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]) / "mup")
