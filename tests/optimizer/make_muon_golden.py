#!/usr/bin/env python3
"""Writes tests/golden/muon: matrices orthogonalized by NVIDIA's Emerging-Optimizers, and steps of torch.optim.Muon.

    python3 tests/optimizer/make_muon_golden.py Emerging-Optimizers tests/golden/muon

Needs torch 2.9 or later, absl-py and a clone of github.com/NVIDIA-NeMo/Emerging-Optimizers, of which it loads only the
iterations, without their GPU kernels.
orthogonalized.csv: coefficient type, iterations, rows, columns, then the elements of the matrix and of the result.
steps.csv: setting of adjust_lr_fn, whether momentum is Nesterov's, step, and the elements of the gradient and of the
weights after the step; step 0 has the initial weights. PyTorch iterates in bf16; here its bf16 is replaced by fp64.
"""

import importlib.util
import pathlib
import sys
import types

import torch

TYPES = {"simple": 5, "quintic": 7, "polar_express": 9, "cans": 6, "aol": 6, "deepseekv4": 10}
SHAPES = [(4, 6), (6, 3), (5, 5)]
ROWS, COLUMNS, STEPS = 3, 4, 4


def text(tensor):
    digits = 17 if tensor.dtype == torch.float64 else 9
    return " ".join(f"{value:.{digits}g}" for value in tensor.flatten().tolist())


def load_iterations(clone):
    package = types.ModuleType("emerging_optimizers")
    package.triton_kernels = types.ModuleType("triton_kernels")
    sys.modules["emerging_optimizers"] = package
    path = clone / "emerging_optimizers/orthogonalized_optimizers/muon_utils.py"
    spec = importlib.util.spec_from_file_location("muon_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_orthogonalized(muon_utils, path):
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("highest")
    with open(path, "w", encoding="utf-8") as file:
        file.write("type,iterations,rows,columns,matrix,result\n")
        for name, most in TYPES.items():
            for iterations in (1, most):
                for rows, columns in SHAPES:
                    matrix = torch.randn(rows, columns)
                    result = muon_utils.newton_schulz(matrix, steps=iterations, coefficient_type=name)
                    file.write(f"{name},{iterations},{rows},{columns},{text(matrix)},{text(result)}\n")


def write_steps(path):
    torch.manual_seed(2)
    module = sys.modules["torch.optim._muon"]
    module.torch = types.SimpleNamespace(**{**vars(torch), "bfloat16": torch.float64})
    with open(path, "w", encoding="utf-8") as file:
        file.write("adjust_lr_fn,nesterov,step,gradient,weights\n")
        for adjust, nesterov in (("match_rms_adamw", True), ("original", False), ("spectral_unclamped", True)):
            weights = torch.nn.Parameter(torch.randn(ROWS, COLUMNS, dtype=torch.float64))
            optimizer = torch.optim.Muon(
                [weights], lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=nesterov, adjust_lr_fn=adjust
            )
            for step in range(STEPS + 1):
                weights.grad = torch.randn(ROWS, COLUMNS, dtype=torch.float64)
                if step > 0:
                    optimizer.step()
                file.write(f"{adjust},{int(nesterov)},{step},{text(weights.grad)},{text(weights.detach())}\n")


folder = pathlib.Path(sys.argv[2])
folder.mkdir(exist_ok=True)
write_orthogonalized(load_iterations(pathlib.Path(sys.argv[1])), folder / "orthogonalized.csv")
write_steps(folder / "steps.csv")
