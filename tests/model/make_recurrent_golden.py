"""Writes tests/golden/recurrent/expected.h5: outputs and gradients of the Gated DeltaNet layer of Qwen3-Next, of the
Mamba-2 layer of Nemotron-H and of the Kimi Delta Attention of Kimi-Linear, computed by transformers in double precision, for recurrent_golden_test.cpp.

usage: make_recurrent_golden.py FILE     (a Python with transformers 5, torch and h5py)

transformers converts parts of these layers to fp32; here the same sources are run with fp64 in its place. Weights and
their gradients are stored in the layout of this program: one row of channels per group.
"""

import importlib.util
import sys

import h5py
import torch

LENGTH, BATCH, HIDDEN = 83, 2, 32


def module_in_fp64(name):
    """Returns a module of transformers that computes in fp64 what it computes in fp32 otherwise."""
    spec = importlib.util.find_spec(name)
    with open(spec.origin) as file:
        source = file.read().replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    module = importlib.util.module_from_spec(spec)
    module.__package__ = name.rpartition(".")[0]
    sys.modules[name] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module


def delta_net():
    """Returns the layer, and functions of a state by parameter that return it in the layout of this program."""
    qwen = module_in_fp64("transformers.models.qwen3_next.modeling_qwen3_next")
    groups, heads, key, value, taps = 2, 3, 5, 6, 4
    config = qwen.Qwen3NextConfig(
        hidden_size=HIDDEN,
        linear_num_key_heads=groups,
        linear_num_value_heads=groups * heads,
        linear_key_head_dim=key,
        linear_value_head_dim=value,
        linear_conv_kernel_dim=taps,
        num_hidden_layers=4,
        rms_norm_eps=1e-6,
    )
    layer = qwen.Qwen3NextGatedDeltaNet(config, 0)

    def conv(x):
        q, k, v = x.squeeze(1).split([groups * key, groups * key, groups * heads * value])
        return torch.cat([q.view(groups, key, taps), k.view(groups, key, taps), v.view(groups, heads * value, taps)], 1)

    def in_proj(state):
        rows = state["in_proj_qkvz.weight"].view(groups, -1, HIDDEN)
        return torch.cat([rows, state["in_proj_ba.weight"].view(groups, -1, HIDDEN)], 1)

    return layer, {
        "in_proj.weight": in_proj,
        "conv1d.weight": lambda state: conv(state["conv1d.weight"]),
        "A_log": lambda state: state["A_log"],
        "dt_bias": lambda state: state["dt_bias"],
        "norm.weight": lambda state: state["norm.weight"],
        "out_proj.weight": lambda state: state["out_proj.weight"],
    }


def mamba():
    nemotron = module_in_fp64("transformers.models.nemotron_h.modeling_nemotron_h")
    groups, heads, dim, states, taps = 2, 2, 6, 5, 4
    config = nemotron.NemotronHConfig(
        hidden_size=HIDDEN,
        mamba_num_heads=groups * heads,
        mamba_head_dim=dim,
        n_groups=groups,
        ssm_state_size=states,
        conv_kernel=taps,
        chunk_size=16,
        layer_norm_epsilon=1e-5,
        time_step_min=0.0,
        layers_block_type=["mamba"],
    )
    layer = nemotron.NemotronHMamba2Mixer(config, 0)

    def by_group(x, b, c):
        """Returns C, B and x of each group, from tensors whose rows are groups."""
        return torch.cat([part.view(groups, -1, *x.shape[1:]) for part in (c, b, x)], 1)

    def conv(x):
        return by_group(*x.split([groups * heads * dim, groups * states, groups * states]))

    def in_proj(state):
        z, x, b, c, dt = state["in_proj.weight"].split(
            [groups * heads * dim, groups * heads * dim, groups * states, groups * states, groups * heads]
        )
        rest = [part.view(groups, -1, HIDDEN) for part in (z, dt)]
        return torch.cat([by_group(x, b, c), *rest], 1)

    return layer, {
        "in_proj.weight": in_proj,
        "conv1d.weight": lambda state: conv(state["conv1d.weight"].squeeze(1)),
        "conv1d.bias": lambda state: conv(state["conv1d.bias"]),
        "A_log": lambda state: state["A_log"],
        "dt_bias": lambda state: state["dt_bias"],
        "D": lambda state: state["D"],
        "norm.weight": lambda state: state["norm.weight"],
        "out_proj.weight": lambda state: state["out_proj.weight"],
    }


def kimi_delta_attention():
    kimi = module_in_fp64("transformers.models.kimi_linear.modeling_kimi_linear")
    heads, dim, taps = 3, 6, 4
    config = kimi.KimiLinearConfig(
        hidden_size=HIDDEN,
        linear_num_heads=heads,
        linear_head_dim=dim,
        linear_conv_kernel_dim=taps,
        num_hidden_layers=4,
        rms_norm_eps=1e-5,
    )
    layer = kimi.KimiLinearDeltaAttention(config, 0)

    def by_head(*parts):
        """Returns the rows of each head of tensors whose rows are heads."""
        return torch.cat([part.reshape(heads, -1, *part.shape[1:]) for part in parts], 1)

    return layer, {
        "in_proj.weight": lambda state: by_head(*(state[f"{part}_proj.weight"] for part in "qkvb")),
        "gate_down_proj.weight": lambda state: state["g_a_proj.weight"],
        "gate_up_proj.weight": lambda state: by_head(state["g_b_proj.weight"]),
        "decay_down_proj.weight": lambda state: state["forget_gate.f_a_proj.weight"],
        "decay_up_proj.weight": lambda state: by_head(state["forget_gate.f_b_proj.weight"]),
        "conv1d.weight": lambda state: by_head(*state["conv1d.weight"].squeeze(1).chunk(3)),
        "A_log": lambda state: state["forget_gate.A_log"].flatten(),
        "dt_bias": lambda state: state["forget_gate.dt_bias"],
        "norm.weight": lambda state: state["o_norm.weight"],
        "out_proj.weight": lambda state: state["o_proj.weight"],
    }


def main():
    torch.manual_seed(5)
    with h5py.File(sys.argv[1], "w") as file:
        for name, make in (
            ("gated_deltanet", delta_net),
            ("mamba", mamba),
            ("kimi_delta_attention", kimi_delta_attention),
        ):
            layer, layouts = make()
            layer = layer.double()
            with torch.no_grad():
                for key, param in layer.named_parameters():
                    if key.endswith("proj.weight") or "_proj_" in key:
                        param.normal_(0, 0.3)
                    elif key.endswith("A_log"):
                        param.normal_(0, 0.7)
                    else:
                        param.normal_(0.5, 0.5)
            x = torch.randn(BATCH, LENGTH, HIDDEN, dtype=torch.float64, requires_grad=True)
            dy = torch.randn(BATCH, LENGTH, HIDDEN, dtype=torch.float64)
            y = layer.eval()(x)
            y.backward(dy)
            assert y.dtype == torch.float64
            values = {key: param.detach() for key, param in layer.named_parameters()}
            gradients = {key: param.grad for key, param in layer.named_parameters()}
            for key, tensor in (("x", x.detach()), ("y", y.detach()), ("dy", dy), ("dx", x.grad)):
                file[f"{name}/{key}"] = tensor.transpose(0, 1).contiguous().numpy()
            for key, layout in layouts.items():
                file[f"{name}/weights/{key}"] = layout(values).contiguous().numpy()
                file[f"{name}/gradients/{key}"] = layout(gradients).contiguous().numpy()


main()
