"""Names of tensors in published files of kimi_linear. save_pretrained of transformers 5 writes different names for dense
layers."""

import re

import safetensors.torch


def publish(folder):
    """Renames the MLPs of dense layers in the file of a saved model to the names in published files."""
    file = folder / "model.safetensors"
    tensors = {re.sub(r"\.block_sparse_moe\.((gate|up|down)_proj\.)", r".mlp.\1", name): value
               for name, value in safetensors.torch.load_file(file).items()}
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
