"""Writes tests/golden/quantized: small random models with quantized weights, some of their weights as transformers and
compressed-tensors dequantize them, and logits in double precision, for quantized_weights_test.cpp and
golden_attention_test.cpp.

usage: make_quantized.py FOLDER     (a Python with transformers 5, compressed-tensors, torch and h5py; FOLDER is tests/golden)
"""

import functools
import json
import pathlib
import sys
import types

import h5py
import torch
import transformers
from compressed_tensors.compressors import naive_quantized
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from transformers.integrations import finegrained_fp8, mxfp4

import make_golden

BLOCK = (8, 16)
DEEPSEEK = dict(
    hidden_size=32, intermediate_size=48, num_key_value_heads=2, head_dim=8, kv_lora_rank=16, qk_nope_head_dim=8,
    qk_rope_head_dim=8, v_head_dim=8, q_lora_rank=16, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
    n_shared_experts=1, moe_intermediate_size=16, first_k_dense_replace=1, routed_scaling_factor=1.5, num_mtp_layers=0,
    experts_implementation="eager")
GPT_OSS = dict(hidden_size=32, intermediate_size=64, num_local_experts=4, num_experts_per_tok=2, sliding_window=6,
               experts_implementation="eager", rope_parameters=dict(rope_type="default", rope_theta=10000.0))
# The last blocks of weights are smaller with this structure.
STRATEGIES = {"tensor": {}, "channel": {}, "group": dict(group_size=8), "block": dict(block_structure=[10, 12])}
KEPT = 3  # weights of each model whose values are stored


def is_linear(name, value):
    return value.ndim == 2 and ".layers." in name and not name.endswith("mlp.gate.weight")


def quantize_fp8(tensors, config):
    """Quantizes as transformers does. Returns functions that dequantize."""
    quantizer = types.SimpleNamespace(quantization_config=types.SimpleNamespace(weight_block_size=BLOCK, scale_fmt="float"))
    quantize, dequantize = finegrained_fp8.Fp8Quantize(quantizer), finegrained_fp8.Fp8Dequantize(quantizer)
    config["quantization_config"] = dict(
        quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=list(BLOCK))
    made = {}
    for name in [name for name, value in tensors.items() if is_linear(name, value)]:
        tensors.update(quantize.convert({name: tensors[name]}))
        codes, scales = tensors[name], tensors[f"{name}_scale_inv"]
        made[name] = functools.partial(dequantize._dequantize_one, codes, scales)
    return made


def quantize_mxfp4(tensors, config):
    """Replaces the experts by random codes. Returns functions that dequantize."""
    config["quantization_config"] = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn"])
    made = {}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        blocks = torch.randint(256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(121, 126, (experts, rows, columns // 32), dtype=torch.uint8)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
        made[name] = lambda dtype, blocks=blocks, scales=scales: mxfp4.convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    return made


def quantize_compressed(strategy, tensors, config):
    """Quantizes with compressed-tensors. Returns functions that dequantize."""
    weights = QuantizationArgs(num_bits=8, type="float", strategy=strategy, symmetric=True, **STRATEGIES[strategy])
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    compressor = naive_quantized.NaiveQuantizationCompressor
    config["quantization_config"] = dict(
        quant_method="compressed-tensors", format="float-quantized", quantization_status="compressed", ignore=["lm_head"],
        config_groups={"group_0": dict(targets=["Linear"], weights=json.loads(weights.model_dump_json()))})
    made = {}
    for name in [name for name, value in tensors.items() if is_linear(name, value)]:
        rows, columns = tensors[name].shape
        height, width = {"tensor": (rows, columns), "channel": (1, columns), "group": (1, 8), "block": (10, 12)}[strategy]
        padded = torch.nn.functional.pad(tensors[name].abs().float(), (0, -columns % width, 0, -rows % height))
        amax = padded.reshape(padded.shape[0] // height, height, -1, width).amax((1, 3))
        scale = (amax / 448).to(torch.float32 if strategy in ("tensor", "block") else torch.bfloat16)
        scale = scale.reshape(1) if strategy == "tensor" else scale
        state = compressor.compress({"weight": tensors[name].float(), "weight_scale": scale}, scheme)
        tensors[name], tensors[f"{name}_scale"] = state["weight"], scale
        made[name] = lambda dtype, state=state: compressor.decompress(state, scheme)["weight"].to(dtype)
    return made


MODELS = {
    "deepseek_v3": ("DeepseekV3", DEEPSEEK, quantize_fp8),
    "gpt_oss": ("GptOss", GPT_OSS, quantize_mxfp4),
    **{strategy: ("Llama", {}, functools.partial(quantize_compressed, strategy)) for strategy in STRATEGIES},
}


def write(folder, family, options, quantize):
    """Writes the files of a model. Returns some of its weights, dequantized in fp32 and bf16."""
    make_golden.write(folder, family, options)
    tensors = {name: value.to(torch.float32 if "e_score_correction_bias" in name else torch.bfloat16)
               for name, value in load_file(folder / "model.safetensors").items()}
    config = json.loads((folder / "config.json").read_text())
    config["dtype"] = "bfloat16"
    made = quantize(tensors, config)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    kept = list(made)[::max(1, len(made) // KEPT)][:KEPT]
    return {name: {dtype: made[name](dtype) for dtype in (torch.float32, torch.bfloat16)} for name in kept}


def load(folder):
    """Returns the model as transformers dequantizes it in double precision."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    quantization = {
        "fp8": transformers.FineGrainedFP8Config, "mxfp4": transformers.Mxfp4Config,
        "compressed-tensors": transformers.CompressedTensorsConfig}[config["quant_method"]]
    stated = {key: value for key, value in config.items() if key not in ("quant_method", "quantization_status", "fmt")}
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager",
        quantization_config=quantization(dequantize=True, **stated))


def main():
    transformers.logging.set_verbosity_error()
    models = {}
    for name, (family, options, quantize) in MODELS.items():
        folder = pathlib.Path(sys.argv[1]) / "quantized" / name
        torch.manual_seed(7)
        weights = write(folder, family, options, quantize)
        models[folder] = load(folder), weights
    make_golden.use_double_precision()
    for folder, (model, weights) in models.items():
        model = model.double().eval()
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # again, in double precision
        tokens = torch.randint(32, (2, make_golden.LENGTH))
        with torch.no_grad(), h5py.File(folder / "expected.h5", "w") as file:
            file["tokens"] = tokens.to(torch.int32).numpy()
            file["logits"] = model(tokens).logits.numpy()
            for name, values in weights.items():
                for dtype, value in values.items():
                    file[f"{str(dtype).removeprefix('torch.')}/{name}"] = value.double().numpy().astype("float32")
        print(folder, transformers.__version__)


if __name__ == "__main__":
    main()
