"""Names of tensors in published files of kimi_linear, which save_pretrained of transformers 5 does not write for dense
layers."""

import re

import safetensors.torch


def publish(folder):
    """Gives the MLPs of dense layers of a saved model the names of published files."""
    file = folder / "model.safetensors"
    tensors = {re.sub(r"\.block_sparse_moe\.((gate|up|down)_proj\.)", r".mlp.\1", name): value
               for name, value in safetensors.torch.load_file(file).items()}
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
