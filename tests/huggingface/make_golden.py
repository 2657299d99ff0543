"""Writes tests/golden/attention: small random models of transformers with scaled RoPE and sliding windows, with what they
answer in double precision, for golden_attention_test.cpp.

usage: make_golden.py FOLDER     (a Python with transformers 5, torch and h5py)
"""

import pathlib
import sys

import h5py
import torch
import transformers

LENGTH, PROMPT = 48, 8
SIZES = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, head_dim=16, max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
             attn_implementation="eager")


def rope(rope_type, **parameters):
    return dict(rope_parameters=dict(rope_type=rope_type, rope_theta=10000.0, **parameters))


MODELS = {
    "linear": ("Llama", rope("linear", factor=4.0)),
    "llama3": ("Llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64)),
    "yarn": ("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "yarn_mscale": ("Llama", rope("yarn", factor=40.0, original_max_position_embeddings=64, beta_fast=8.0,
                                  beta_slow=0.5, mscale=0.7, mscale_all_dim=1.2, truncate=False)),
    "yarn_attention_factor": ("Llama", rope("yarn", factor=2.0, original_max_position_embeddings=64,
                                            attention_factor=1.3)),
    "mistral": ("Mistral", dict(sliding_window=7)),
    "ministral": ("Ministral", dict(sliding_window=5, num_hidden_layers=5,
                                    layer_types=[("full" if i == 2 else "sliding") + "_attention" for i in range(5)])),
    "qwen2": ("Qwen2", dict(sliding_window=6, num_hidden_layers=3, use_sliding_window=True, max_window_layers=1)),
}


def in_double():
    """transformers computes RoPE in float32, whatever the weights are: here float32 is another word for float64."""
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double


def write(folder, family, options):
    torch.manual_seed(5)
    config = getattr(transformers, family + "Config")(**{**SIZES, **options})
    model = getattr(transformers, family + "ForCausalLM")(config)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    model.float().save_pretrained(folder)
    return model, torch.randint(32, (2, LENGTH))


def answer(folder, model, tokens):
    model = model.double().eval()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # again, in double precision
    with torch.no_grad(), h5py.File(folder / "expected.h5", "w") as file:
        file["tokens"] = tokens.to(torch.int32).numpy()
        file["logits"] = model(tokens).logits.numpy()
        file["generated"] = model.generate(
            tokens[:, :PROMPT], attention_mask=torch.ones(2, PROMPT), do_sample=False, use_cache=True, pad_token_id=0,
            min_new_tokens=LENGTH - PROMPT, max_new_tokens=LENGTH - PROMPT).to(torch.int32).numpy()


def main():
    models = {}
    for name, (family, options) in MODELS.items():
        folder = pathlib.Path(sys.argv[1]) / name
        models[folder] = write(folder, family, options)
    in_double()
    for folder, (model, tokens) in models.items():
        answer(folder, model, tokens)
        (folder / "generation_config.json").unlink(missing_ok=True)
        print(folder, transformers.__version__)


main()
