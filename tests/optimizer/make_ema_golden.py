#!/usr/bin/env python3
"""Writes tests/golden/ema_weights.csv: AdamW and AveragedModel of PyTorch on a small matrix with random gradients.

    python3 tests/optimizer/make_ema_golden.py tests/golden/ema_weights.csv

Needs torch. Columns: step, index of the element, gradient of the step, weight and averaged weight after it. Step 0 has
the initial weights, with which the average begins.
"""

import sys

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

STEPS, DECAY = 12, 0.9


def main(path):
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 6, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    with open(path, "w", encoding="utf-8") as file:
        file.write("step,index,gradient,weight,ema\n")
        for step in range(STEPS + 1):
            gradient = torch.randn_like(model.weight) if step > 0 else torch.zeros_like(model.weight)
            if step > 0:
                model.weight.grad = gradient
                optimizer.step()
            averaged.update_parameters(model)
            for index in range(model.weight.numel()):
                values = (t.flatten()[index].item() for t in (gradient, model.weight, averaged.module.weight))
                file.write(f"{step},{index}," + ",".join(f"{value:.9g}" for value in values) + "\n")


main(sys.argv[1])
