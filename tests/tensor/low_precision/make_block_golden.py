#!/usr/bin/env python3
"""Writes tests/golden/low_precision/blocks.h5: bf16 matrices rounded to blocks by torchao and PyTorch.

Needs h5py, torch and torchao. All values are bits of bf16.
- x [rows, 256]: random values of many magnitudes, and edge cases
- mxfp8_e4m3, mxfp8_e5m2: torchao's to_mx with NVIDIA's scales ("rceil"), blocks of 32 along the rows
- nvfp4: torchao's nvfp4_quantize of `nvfp4_x` with a scale of the matrix, `nvfp4_scale` (fp32), which is not part of the
  values
- blockwise_e4m3: Transformer Engine's Float8BlockScaling, blocks of 128 along the rows; blockwise_weight_e4m3: 128 x 128
"""

import pathlib

import h5py
import numpy as np
import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

COLUMNS = 256
FORMATS = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}


def edge_rows():
    """Returns rows that test ties, subnormal elements, scales at powers of two, zeros and NaN."""
    rows = []
    for largest in (448.0, 450.0, 57344.0, 57600.0, 1.0, 1.75, 1.7578125, 2.0):
        row = torch.arange(COLUMNS, dtype=torch.float32) / 1024 * largest / 448
        row[::32] = largest
        rows.append(row)
    midpoints = (1 + (2 * torch.arange(COLUMNS, dtype=torch.float32) % 32 + 1) / 16) * 2.0 ** (
        torch.arange(COLUMNS) % 24 - 14
    )
    midpoints[::32] = 448
    rows.append(midpoints)
    rows.append(-midpoints)
    rows.append(torch.zeros(COLUMNS))
    rows.append(-torch.zeros(COLUMNS))
    one_nan = torch.randn(COLUMNS)
    one_nan[40] = float("nan")
    rows.append(one_nan)
    return torch.stack(rows)


def inputs():
    torch.manual_seed(1)
    random = torch.randn(115, COLUMNS) * torch.exp2(torch.randint(-60, 60, (115, 1)).float())
    random *= torch.exp2(torch.randint(-12, 4, random.shape).float())  # different magnitudes within a block
    return torch.cat([edge_rows(), random]).to(torch.bfloat16)


def rounded(blocks, dtype, maximum):
    """Rounds blocks [..., elements] with the largest power of two that keeps each in range."""
    blocks = blocks.float()
    amax = blocks.abs().amax(-1, keepdim=True)
    scale = torch.exp2(torch.floor(torch.log2(maximum / amax.double()))).float()
    scale = torch.where(amax == 0, torch.ones_like(scale), scale)
    return (blocks * scale).clamp(-maximum, maximum).to(dtype).float() / scale


def mxfp8(x, dtype):
    scale, data = to_mx(x, dtype, 32, ScaleCalculationMode.RCEIL)
    blocks = data.float().reshape(x.shape[0], -1, 32) * scale.float().unsqueeze(-1)
    return blocks.reshape(x.shape)


def blockwise(x, dtype, maximum):
    return rounded(x.reshape(x.shape[0], -1, 128), dtype, maximum).reshape(x.shape)


def blockwise_weight(x, dtype, maximum):
    blocks = x.reshape(x.shape[0] // 128, 128, -1, 128).transpose(1, 2)
    flat = rounded(blocks.reshape(*blocks.shape[:2], -1), dtype, maximum)
    return flat.reshape(blocks.shape).transpose(1, 2).reshape(x.shape)


def nvfp4_inputs():
    """Returns values of many magnitudes, with zeros, blocks far below the largest value, and ties."""
    torch.manual_seed(2)
    x = torch.randn(64, COLUMNS) * torch.exp2(torch.randint(-14, 4, (64, COLUMNS // 16)).float()).repeat_interleave(16, 1)
    x[0] = 0
    x[1] = -0.0
    x[2] = (torch.arange(COLUMNS) % 32 - 16) / 4 * 1.5  # multiples of a quarter of the scale
    x[2, ::16] = 6
    x[3] *= 1e-30
    return x.to(torch.bfloat16)


def nvfp4(x):
    matrix_scale = per_tensor_amax_to_scale(x.abs().amax())
    block_scale, codes = nvfp4_quantize(x, 16, matrix_scale)
    values = f4_unpacked_to_f32(unpack_uint4(codes)).reshape(x.shape[0], -1, 16)
    return (values * block_scale.float().reshape(x.shape[0], -1, 1)).reshape(x.shape), matrix_scale


def bits(x):
    return x.to(torch.bfloat16).contiguous().view(torch.int16).numpy().astype(np.uint16)


def main():
    x = inputs()
    path = pathlib.Path(__file__).parents[2] / "golden/low_precision/blocks.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=bits(x), compression="gzip", compression_opts=9, shuffle=True)
        fp4_x = nvfp4_inputs()
        fp4, matrix_scale = nvfp4(fp4_x)
        assert torch.equal(fp4, fp4.to(torch.bfloat16).float())
        file.create_dataset("nvfp4_x", data=bits(fp4_x), compression="gzip", compression_opts=9, shuffle=True)
        file.create_dataset("nvfp4", data=bits(fp4), compression="gzip", compression_opts=9, shuffle=True)
        file.create_dataset("nvfp4_scale", data=matrix_scale.reshape(1).numpy())
        for name, (dtype, maximum) in FORMATS.items():
            results = {
                "mxfp8": mxfp8(x, dtype),
                "blockwise": blockwise(x, dtype, maximum),
                "blockwise_weight": blockwise_weight(x, dtype, maximum),
            }
            for recipe, y in results.items():
                assert torch.equal(y, y.to(torch.bfloat16).float()) or y.isnan().any(), "bf16 represents every result"
                file.create_dataset(f"{recipe}_{name}", data=bits(y), compression="gzip", compression_opts=9, shuffle=True)


if __name__ == "__main__":
    main()
