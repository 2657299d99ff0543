"""Names of tensors in published files of olmo_hybrid, which save_pretrained of transformers 5 does not write."""

import re

import safetensors.torch

RENAMED = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}


def conv_sizes(config):
    """Returns the channels of queries, keys and values."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    return [keys, keys, config.linear_num_value_heads * config.linear_value_head_dim]


def publish(folder, config):
    """Gives a saved model the names of published files. transformers splits the convolution into equal parts instead of
    queries, keys and values."""
    file = folder / "model.safetensors"
    tensors = {}
    for name, value in safetensors.torch.load_file(file).items():
        tensors[re.sub("|".join(RENAMED), lambda match: RENAMED[match[0]], name)] = value
    for prefix in {name.removesuffix("q_conv1d.weight") for name in tensors if name.endswith("q_conv1d.weight")}:
        names = [f"{prefix}{part}_conv1d.weight" for part in "qkv"]
        fused = safetensors.torch.torch.cat([tensors[name] for name in names])
        tensors.update(zip(names, (part.clone() for part in fused.split(conv_sizes(config)))))
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
