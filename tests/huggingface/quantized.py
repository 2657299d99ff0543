"""Exports small random models in fp8 with blocks of 128 x 128, and imports them again: compares the exported weights with
transformers' quantization, bitwise, and losses with transformers.

usage: quantized.py MEGATRON_CPP SOURCE_FOLDER
Exit code 77, with the reason, if transformers, torch, sentencepiece or accelerate is not installed.
"""

import json
import pathlib
import sys
import tempfile
import types

import imports  # skips without transformers

try:
    import accelerate  # noqa: F401, transformers needs it for quantized weights
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from transformers.integrations import finegrained_fp8
except ImportError as missing:
    print(f"SKIPPED: this Python has no {missing.name}")
    sys.exit(77)

SIZES = dict(hidden_size=256, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
             rms_norm_eps=1e-5)
DEEPSEEK = dict(SIZES, num_key_value_heads=4, q_lora_rank=128, kv_lora_rank=96, qk_nope_head_dim=32, qk_rope_head_dim=32, head_dim=32,
                v_head_dim=32, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=128, n_group=2,
                topk_group=1, first_k_dense_replace=1, routed_scaling_factor=1.5)
MODELS = {
    "DeepseekV3": DEEPSEEK,
    "Llama": dict(SIZES, num_key_value_heads=2),
    "Qwen3Moe": dict(SIZES, num_key_value_heads=2, head_dim=64, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128),
}
BLOCK = 128


def is_linear(name, value):
    return value.ndim == 2 and ".layers." in name and not name.endswith("mlp.gate.weight")


def quantizer():
    return finegrained_fp8.Fp8Quantize(types.SimpleNamespace(quantization_config=types.SimpleNamespace(
        weight_block_size=(BLOCK, BLOCK), scale_fmt="float")))


def quantized(tensors):
    """Returns the tensors with matrices in fp8, where their sizes are multiples of the block."""
    result = {}
    for name, value in tensors.items():
        result.update(quantizer().convert({name: value}) if is_linear(name, value) else {name: value})
    return result


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def check_model(check, name, family, options, tokenizer_folder, seed):
    folder = check.scratch / name
    _, tokenizer = imports.make_model(folder, tokenizer_folder, family, seed, options)
    tensors = {key: value.float() if "e_score_correction_bias" in key else value.bfloat16()
               for key, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    plain = json.loads((folder / "config.json").read_text())
    # The export of the model in bf16 has the weights that transformers would quantize.
    check.run("checkpoint", "import-hf", folder, f"--save={folder}/run")
    check.run("checkpoint", "export-hf", folder / "run", folder / "fp8", "--quantization=fp8_block",
              f"--model_type={plain['model_type']}")
    ours, theirs = load_file(folder / "fp8" / "model.safetensors"), quantized(tensors)
    check.expect(ours.keys() == theirs.keys(), name, "exports", sorted(ours.keys() ^ theirs.keys()))
    for key in ours.keys() & theirs.keys():
        same = ours[key].dtype == theirs[key].dtype and torch.equal(ours[key].view(torch.uint8), theirs[key].view(torch.uint8))
        check.expect(same, name, "exports other values of", key)
    check.expect(any(value.dtype == torch.float8_e4m3fn for value in ours.values()), name, "has no weights in fp8")
    # The quantized model gives the same results in both programs. transformers dequantizes it, in fp32.
    check.run("checkpoint", "import-hf", folder / "fp8", f"--save={folder}/again", "--precision=fp32")
    report = json.loads(check.run("evaluate", f"--load={folder}/again", f"--text={check.text_file}", f"--window={imports.WINDOW}",
                                  "--json", "--precision=fp32"))
    loss = imports.text_loss(load(folder / "fp8"), tokenizer, check.text)
    check.expect(abs(report["loss"] / loss - 1) < 1e-5, name, "loss", report["loss"], "theirs", loss)
    print(name, "loss", report["loss"], "theirs", loss, flush=True)


def main():
    print("transformers", transformers.__version__, flush=True)
    transformers.logging.set_verbosity_error()
    source = pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        shakespeare = (source / "data" / "tinyshakespeare.txt").read_text()
        corpus = scratch / "corpus.txt"
        corpus.write_text(shakespeare[:100000])
        check = imports.Check(sys.argv[1], scratch, corpus, shakespeare[200000:200600].strip())
        tokenizer = imports.byte_level(scratch / "tokenizer", corpus, ["<|endoftext|>"], eos_token="<|im_end|>")
        for seed, (family, options) in enumerate(MODELS.items()):
            try:
                check_model(check, family, family, options, tokenizer, seed)
            except RuntimeError as error:
                check.expect(False, family, error)
    print(check.failures, "failures")
    sys.exit(1 if check.failures else 0)


if __name__ == "__main__":
    main()
