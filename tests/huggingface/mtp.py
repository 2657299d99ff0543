"""Layers for multi-token prediction of transformers' models, with the names and config keys of published files."""

import copy
import json

import safetensors.torch
import torch
from transformers.modeling_layers import MtpModel

LAYERS_AFTER = {"deepseek_v3", "glm4_moe_lite"}  # model types whose files number these layers after the last layer
CONFIG_KEYS = {"deepseek_v3": "num_nextn_predict_layers", "glm4_moe_lite": "num_nextn_predict_layers",
               "qwen3_5_text": "mtp_num_hidden_layers", "qwen3_5_moe_text": "mtp_num_hidden_layers",  # qwen3_next has none
               "nemotron_h": "num_nextn_predict_layers"}
MODULES = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"}


def with_attention(model, build):
    """Returns build(), called while the model only has its last layer with attention, which determines the type of norms."""
    decoder = model.get_decoder()
    layers = decoder.layers
    decoder.layers = torch.nn.ModuleList([layer for layer in layers if hasattr(layer, "self_attn")][-1:])
    try:
        return build()
    finally:
        decoder.layers = layers


class BranchLayer(torch.nn.Module):
    """Layer of nemotron_h, for which transformers has no MtpModel: layers of one branch, as in vLLM."""

    def __init__(self, config, block, norm):
        super().__init__()
        self.enorm, self.hnorm, self.final_layernorm = (norm(config.hidden_size, eps=config.layer_norm_epsilon) for _ in range(3))
        self.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.branches = torch.nn.ModuleList([block(config, index) for index in range(len(config.layers_block_type))])

    def forward(self, embeddings, hidden):
        hidden = self.eh_proj(torch.cat([self.enorm(embeddings), self.hnorm(hidden)], dim=-1))
        length = hidden.shape[1]
        mask = torch.full((1, 1, length, length), float("-inf"), dtype=hidden.dtype).triu(1)
        for branch in self.branches:
            hidden = branch(hidden, attention_mask=mask if branch.block_type == "full_attention" else None)
        return self.final_layernorm(hidden)


class BranchModel(torch.nn.Module):
    """Layers of nemotron_h with the interface of MtpModel."""

    def __init__(self, model, kinds, count):
        super().__init__()
        config = copy.deepcopy(model.config)
        config.layers_block_type = kinds
        types = type(model.get_decoder().layers[0]), type(model.get_decoder().norm_f)
        self.num_mtp_layers, self.kinds = count, kinds
        self.layers = torch.nn.ModuleList([BranchLayer(config, *types) for _ in range(count)])
        self.tie_with_main_model(model)

    def tie_with_main_model(self, model):
        self.embed = model.get_input_embeddings()

    def forward_layer(self, layer, hidden, positions, cache, input_ids):
        return self.layers[layer](self.embed(input_ids), hidden)


def make_branches(model, count, kinds=("full_attention", "moe")):
    prediction = BranchModel(model, list(kinds), count)
    for name, tensor in prediction.state_dict().items():
        if name.startswith("layers."):
            torch.nn.init.normal_(tensor, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return prediction


def make(model, count):
    """Returns random layers that share the embedding and output matrices of a model."""
    config = model.config
    if config.model_type == "nemotron_h":
        return make_branches(model, count, ("full_attention", "moe" if "moe" in config.layers_block_type else "mlp"))
    stated = config.to_dict()
    config.num_mtp_layers = count
    if "layer_types" in stated:
        config.mtp_layer_types = ["full_attention"] * count
    if "mlp_layer_types" in stated:
        config.mtp_mlp_layer_types = ["sparse"] * count
    prediction = with_attention(model, lambda: MtpModel(model, count))
    own = {name: tensor for name, tensor in prediction.state_dict().items() if name.startswith("layers.")}
    for name, tensor in own.items():
        torch.nn.init.normal_(tensor, mean=1.0 if "norm" in name else 0.0, std=0.3)
    for key in ("mtp_layer_types", "mtp_mlp_layer_types"):
        if hasattr(config, key):
            delattr(config, key)
    return prediction


def parts_of(name, value):
    """Returns the tensors of a file that transformers 5 fuses into one parameter: one per expert, and gate and up."""
    if ".experts." not in name:
        yield name, value
        return
    base, fused = name.rsplit(".", 1)
    is_gated = fused == "gate_up_proj"
    for expert, rows in enumerate(value):
        if not is_gated:
            yield f"{base}.{expert}.{fused}.weight", rows
            continue
        for half, part in zip(("gate", "up"), rows.chunk(2)):
            yield f"{base}.{expert}.{half}_proj.weight", part


def published_name(model, name, kinds):
    """Returns the name in a published file of layers.0.enorm.weight, layers.0.mtp_block.mlp.gate.weight, ..."""
    _, layer, module, rest = name.split(".", 3)
    if model.config.model_type == "nemotron_h":
        branches = len(kinds)
        if module == "branches":
            branch, rest = rest.split(".", 1)
            return f"mtp.layers.{int(layer) * branches + int(branch)}.{rest}"
        return f"mtp.layers.{int(layer) * branches + (branches - 1 if module == 'final_layernorm' else 0)}.{module}.{rest}"
    is_block = module == "mtp_block"
    if model.config.model_type in LAYERS_AFTER:
        prefix = f"model.layers.{model.config.num_hidden_layers + int(layer)}."
        return prefix + (rest if is_block else f"{'shared_head.norm' if module == 'post_norm' else module}.{rest}")
    return f"mtp.layers.{layer}.{rest}" if is_block else f"mtp.{MODULES[module]}.{rest}"


def published(model, prediction, select):
    """Returns select(tensor) of all tensors of the layers by their names in a published file, except where it is None."""
    tensors = dict(prediction.named_parameters()) | dict(prediction.named_buffers())
    selected = {name: select(tensor) for name, tensor in tensors.items() if name.startswith("layers.")}
    return {part: rows for name, value in selected.items() if value is not None
            for part, rows in parts_of(published_name(model, name, getattr(prediction, "kinds", None)), value)}


def publish(folder, model, prediction):
    """Adds the layers to the files of a saved model, with copies of the shared matrices if the model type has them."""
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors.update(published(model, prediction, lambda tensor: tensor.detach().clone()))
    model_type, count = model.config.model_type, prediction.num_mtp_layers
    if model_type in LAYERS_AFTER:
        for layer in range(count):
            prefix = f"model.layers.{model.config.num_hidden_layers + layer}."
            tensors[prefix + "embed_tokens.weight"] = model.get_input_embeddings().weight.detach().clone()
            tensors[prefix + "shared_head.head.weight"] = model.lm_head.weight.detach().clone()
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config.pop("num_mtp_layers", None)
    if model_type == "nemotron_h":
        config["mtp_layers_block_type"] = prediction.kinds
    if model_type in CONFIG_KEYS:
        config[CONFIG_KEYS[model_type]] = count
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load(folder, model):
    """Returns the layers of a published file, read by transformers."""
    config = json.loads((folder / "config.json").read_text())
    count = config.get(CONFIG_KEYS.get(config["model_type"]), 1)
    if config["model_type"] == "nemotron_h":
        prediction = make_branches(model, count, model.config.mtp_layers_block_type)
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        names = published(model, prediction, lambda tensor: tensor)
        assert set(names) == {name for name in tensors if name.startswith("mtp.")}
        with torch.no_grad():
            for name, tensor in names.items():
                tensor.copy_(tensors[name])
        return prediction
    shape = make(model, count).config  # has the kinds of the layers
    model.config.get_mtp_config = lambda: shape
    model.config.num_mtp_layers = count
    if config["model_type"] in LAYERS_AFTER:
        first = config["num_hidden_layers"]
        model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{first + layer}\..*" for layer in range(count)]
    return with_attention(model, lambda: MtpModel.from_pretrained(model))


def losses(model, prediction, tokens):
    """Returns the losses of the next tokens [batch, s - 1] and, for each layer, of later tokens [batch, s - 2], ..."""
    def loss(hidden, ahead):
        logits = model.lm_head(hidden[:, :-1])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, ahead:].flatten(),
                                                 reduction="none").view(logits.shape[:2])

    hidden = model.get_decoder()(tokens).last_hidden_state
    positions = torch.arange(tokens.shape[1])[None]
    result = [loss(hidden, 1)]
    for layer in range(prediction.num_mtp_layers):
        hidden, positions = hidden[:, :-1], positions[:, :-1]
        hidden = prediction.forward_layer(layer, hidden, positions, None, input_ids=tokens[:, layer + 1:])
        result.append(loss(hidden, layer + 2))
    return result
