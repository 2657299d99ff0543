"""Writes tests/golden/attention, tests/golden/families and tests/golden/mtp: small random models of transformers with
scaled RoPE and sliding windows, of further families, and with multi-token prediction, with their results in double
precision, for golden_attention_test.cpp.

usage: make_golden.py FOLDER [MODEL ...]     (a Python with transformers 5, torch and h5py; FOLDER is tests/golden)
"""

import pathlib
import sys

import h5py
import torch
import transformers

import kimi_linear_names
import mtp
import olmo_hybrid_names

LENGTH, PROMPT = 48, 8
GRADIENTS, STEP = 64, 7919  # elements of each gradient, and their distance
SIZES = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, head_dim=16, max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
             attn_implementation="eager")

LLAMA_KEYS = {"num_key_value_heads", "head_dim"}  # keys that GPT-NeoX lacks
# Keys of multi-latent attention, which has no keys shared by heads.
LATENTS = dict(num_key_value_heads=2, head_dim=4, kv_lora_rank=12, qk_nope_head_dim=10, qk_rope_head_dim=4, v_head_dim=8)
# Keys of Gated DeltaNet and of gated attention. With a smaller epsilon, the norms after scans would amplify rounding.
LINEAR = dict(rms_norm_eps=1e-2, num_attention_heads=4, num_key_value_heads=2, head_dim=12, linear_num_key_heads=2,
              linear_num_value_heads=6, linear_key_head_dim=5, linear_value_head_dim=4, linear_conv_kernel_dim=3)
SHARED_EXPERT = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8, shared_expert_intermediate_size=12,
                     experts_implementation="eager")
HALF_ROTARY = dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))
# Keys of Kimi Delta Attention, of latent attention and of experts of Kimi-Linear, with a larger epsilon as in LINEAR.
KIMI = dict(LATENTS, rms_norm_eps=1e-2, q_lora_rank=None, linear_num_heads=3, linear_head_dim=6, linear_conv_kernel_dim=4,
            num_local_experts=8, num_experts_per_tok=3, n_shared_experts=1, moe_intermediate_size=8, routed_scaling_factor=1.5,
            pad_token_id=None, experts_implementation="eager")
STORED_EXPERTS = {"gpt_oss", "llama4_text"}  # model types whose files have one tensor for all experts


def linear_layers(kinds):
    """Returns layer_types, with l for Gated DeltaNet and f for attention."""
    return dict(num_hidden_layers=len(kinds), layer_types=[
        "linear_attention" if kind == "l" else "full_attention" for kind in kinds])

# Keys of Mamba-2, without a limit of time steps, and of experts of nemotron_h.
MAMBA = dict(mamba_num_heads=4, mamba_head_dim=6, n_groups=2, ssm_state_size=5, chunk_size=16, time_step_min=1e-30,
             layer_norm_epsilon=1e-2, pad_token_id=None, num_hidden_layers=None)
EXPERTS = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=8, moe_shared_expert_intermediate_size=12,
               experts_implementation="eager")


def rope(rope_type, **parameters):
    return dict(rope_parameters=dict(rope_type=rope_type, rope_theta=10000.0, **parameters))


MODELS = {
    "attention/linear": ("Llama", rope("linear", factor=4.0)),
    "attention/llama3": ("Llama", rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64)),
    "attention/yarn": ("Llama", rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "attention/yarn_mscale": ("Llama", rope("yarn", factor=40.0, original_max_position_embeddings=64, beta_fast=8.0,
                                  beta_slow=0.5, mscale=0.7, mscale_all_dim=1.2, truncate=False)),
    "attention/yarn_attention_factor": ("Llama", rope("yarn", factor=2.0, original_max_position_embeddings=64,
                                            attention_factor=1.3)),
    "attention/mistral": ("Mistral", dict(sliding_window=7)),
    "attention/ministral": ("Ministral", dict(sliding_window=5, num_hidden_layers=5,
                                    layer_types=[("full" if i == 2 else "sliding") + "_attention" for i in range(5)])),
    "attention/qwen2": ("Qwen2", dict(sliding_window=6, num_hidden_layers=3, use_sliding_window=True, max_window_layers=1)),
    "families/qwen3": ("Qwen3", dict(head_dim=12, sliding_window=6, num_hidden_layers=3, use_sliding_window=True,
                                     max_window_layers=1, attention_bias=True)),
    "families/qwen3_moe": ("Qwen3Moe", dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
                                            num_hidden_layers=3, mlp_only_layers=[1],
                                            experts_implementation="eager")),
    "families/qwen2_moe": ("Qwen2Moe", dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=8,
                                            shared_expert_intermediate_size=12, num_hidden_layers=3,
                                            mlp_only_layers=[1], experts_implementation="eager")),
    "families/dots1": ("Dots1", dict(n_routed_experts=8, num_experts_per_tok=4, n_group=4, topk_group=2, n_shared_experts=2,
                                     moe_intermediate_size=8, first_k_dense_replace=1, norm_topk_prob=True,
                                     routed_scaling_factor=1.5, num_hidden_layers=4, sliding_window=6,
                                     max_window_layers=2, experts_implementation="eager")),
    "families/deepseek_v2": ("DeepseekV2", dict(
        **LATENTS, q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
        topk_method="group_limited_greedy", n_shared_experts=2, moe_intermediate_size=8, first_k_dense_replace=1,
        routed_scaling_factor=2.0, num_hidden_layers=3, experts_implementation="eager", **rope(
            "yarn", factor=40.0, original_max_position_embeddings=16, beta_fast=8.0, mscale=0.707, mscale_all_dim=0.707))),
    "families/deepseek_v2_lite": ("DeepseekV2", dict(
        LATENTS, v_head_dim=16, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=2, n_group=1, topk_group=1,
        n_shared_experts=1, moe_intermediate_size=8, num_hidden_layers=2, experts_implementation="eager")),
    "families/deepseek_v3": ("DeepseekV3", dict(
        **LATENTS, q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, n_shared_experts=1,
        moe_intermediate_size=8, first_k_dense_replace=2, routed_scaling_factor=1.5, num_hidden_layers=4, num_mtp_layers=0,
        rms_norm_eps=1e-5, experts_implementation="eager", **rope(
            "yarn", factor=8.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0))),
    "families/glm4_moe_lite": ("Glm4MoeLite", dict(
        LATENTS, v_head_dim=14, q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=8,
        num_hidden_layers=3, mlp_layer_types=["dense", "sparse", "sparse"], experts_implementation="eager")),
    "families/kimi_linear": ("KimiLinear", dict(
        KIMI, **linear_layers("lfll"), n_group=4, topk_group=2, mlp_layer_types=["dense", "sparse", "sparse", "sparse"])),
    "families/kimi_linear_latent_queries": ("KimiLinear", dict(
        KIMI, **linear_layers("fll"), q_lora_rank=20, n_shared_experts=2, linear_num_heads=2, linear_conv_kernel_dim=3,
        mlp_layer_types=["sparse", "dense", "sparse"])),
    "families/qwen3_next": ("Qwen3Next", dict(**LINEAR, **SHARED_EXPERT, **linear_layers("llfl"), mlp_only_layers=[1], rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "families/qwen3_next_unnormalized": ("Qwen3Next", dict(
        **dict(LINEAR, linear_num_value_heads=2, linear_conv_kernel_dim=4), **SHARED_EXPERT, **linear_layers("fl"), norm_topk_prob=False,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, partial_rotary_factor=0.34, factor=4.0,
                                                original_max_position_embeddings=32))),
    "families/qwen3_5": ("Qwen3_5Text", dict(**LINEAR, **linear_layers("lfl"), tie_word_embeddings=True, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 1], mrope_interleaved=True))),
    "families/qwen3_5_moe": ("Qwen3_5MoeText", dict(**LINEAR, **SHARED_EXPERT, **linear_layers("lfl"), rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "families/olmo_hybrid": ("OlmoHybrid", dict(**dict(LINEAR, head_dim=6), **linear_layers("lfl"), pad_token_id=None, rope_parameters=dict(
        rope_type="default", rope_theta=None))),
    "families/olmo_hybrid_rope": ("OlmoHybrid", dict(
        **dict(LINEAR, head_dim=6, linear_num_value_heads=2), **linear_layers("flll"), pad_token_id=None, attention_bias=True,
        linear_allow_neg_eigval=False, rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                                            original_max_position_embeddings=32))),
    "families/phi3": ("Phi3", dict(sliding_window=7, pad_token_id=None, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    "families/olmo2": ("Olmo2", dict(pad_token_id=None)),
    "families/gemma2": ("Gemma2", dict(sliding_window=6, num_hidden_layers=3, query_pre_attn_scalar=9, pad_token_id=None,
                                       attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "families/gemma3": ("Gemma3Text", dict(sliding_window=6, num_hidden_layers=4, query_pre_attn_scalar=9,
                                           pad_token_id=None, layer_types=[
                                               ("full" if i == 2 else "sliding") + "_attention" for i in range(4)],
                                           rope_parameters=dict(
                                               sliding_attention=dict(rope_type="default", rope_theta=100.0),
                                               full_attention=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)))),
    "families/smollm3": ("SmolLM3", dict(num_hidden_layers=4, use_sliding_window=True, sliding_window=6, attention_bias=True,
                                         no_rope_layers=[1, 0, 0, 1], pad_token_id=None, tie_word_embeddings=False)),
    "families/gpt_oss": ("GptOss", dict(num_hidden_layers=3, sliding_window=6, num_local_experts=4, num_experts_per_tok=2,
                                        swiglu_limit=0.8, experts_implementation="eager",
                                        rope_parameters=dict(
                                            rope_type="yarn", rope_theta=10000.0, factor=4.0, beta_fast=32.0,
                                            beta_slow=1.0, truncate=False, original_max_position_embeddings=32))),
    "families/llama4": ("Llama4Text", dict(num_hidden_layers=4, num_local_experts=4, intermediate_size_mlp=20,
                                           interleave_moe_layer_step=2, no_rope_layer_interval=3,
                                           attention_chunk_size=7, floor_scale=5, attn_scale=0.4,
                                           rope_parameters=dict(
                                               rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                               high_freq_factor=1.0, original_max_position_embeddings=64))),
    # With a smaller epsilon, the norms after scans would amplify rounding.
    "families/nemotron_h": ("NemotronH", dict(
        MAMBA, hybrid_override_pattern="M-*M-", mlp_bias=True, num_attention_heads=4, num_key_value_heads=2, head_dim=6)),
    "families/nemotron_h_moe": ("NemotronH", dict(
        MAMBA, **EXPERTS, hybrid_override_pattern="ME*E-", n_groups=1, conv_kernel=3, n_group=4, topk_group=2,
        routed_scaling_factor=2.5)),
    "families/nemotron_h_latent": ("NemotronH", dict(MAMBA, **EXPERTS, hybrid_override_pattern="E*ME", moe_latent_size=10)),
    "families/gpt_neox": ("GPTNeoX", dict(rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5))),
    # The layers of multi-token prediction differ from the last layer, except in deepseek_v3 and qwen3_5_moe. The layers
    # of nemotron_h have one branch.
    "mtp/deepseek_v3": ("DeepseekV3", dict(
        **LATENTS, q_lora_rank=20, n_routed_experts=4, num_experts_per_tok=3, n_group=2, topk_group=2, n_shared_experts=1,
        moe_intermediate_size=8, first_k_dense_replace=1, routed_scaling_factor=1.5, num_hidden_layers=2,
        rms_norm_eps=1e-5, experts_implementation="eager", **rope(
            "yarn", factor=8.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0))),
    "mtp/glm4_moe_lite": ("Glm4MoeLite", dict(
        LATENTS, v_head_dim=14, q_lora_rank=20, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=8,
        num_hidden_layers=2, mlp_layer_types=["sparse", "dense"], experts_implementation="eager")),
    "mtp/qwen3_next": ("Qwen3Next", dict(**LINEAR, **SHARED_EXPERT, **linear_layers("fl"), **HALF_ROTARY, mlp_only_layers=[1])),
    "mtp/qwen3_next_dense": ("Qwen3Next", dict(**LINEAR, **SHARED_EXPERT, **linear_layers("fl"), **HALF_ROTARY,
                                               decoder_sparse_step=2)),
    "mtp/qwen3_5": ("Qwen3_5Text", dict(**LINEAR, **linear_layers("fl"), **HALF_ROTARY, tie_word_embeddings=True)),
    "mtp/qwen3_5_moe": ("Qwen3_5MoeText", dict(**LINEAR, **SHARED_EXPERT, **linear_layers("lf"), **HALF_ROTARY)),
    "mtp/nemotron_h": ("NemotronH", dict(MAMBA, **EXPERTS, hybrid_override_pattern="M*E", moe_latent_size=10)),
}
MTP_LAYERS = {"mtp/deepseek_v3": 2, "mtp/nemotron_h": 2}  # other models have one layer
MTP_FACTOR = 0.1  # weight of the mean loss of the layers of multi-token prediction


def use_double_precision():
    """Makes float32 an alias of float64, because transformers computes RoPE in float32 for all types of weights."""
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double


def write(folder, family, options):
    torch.manual_seed(5)
    sizes = {key: value for key, value in SIZES.items() if family != "GPTNeoX" or key not in LLAMA_KEYS}
    config = getattr(transformers, family + "Config")(**{**sizes, **options})
    model = getattr(transformers, family.removesuffix("Text") + "ForCausalLM")(config)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    model.float().save_pretrained(folder)
    if family == "OlmoHybrid":
        olmo_hybrid_names.publish(folder, config)
    if family == "KimiLinear":
        kimi_linear_names.publish(folder)
    return model, torch.randint(32, (2, LENGTH))


@torch.enable_grad()
def write_gradients(file, model, tokens):
    """Writes the mean loss of next tokens and its gradients, by the names of checkpoints."""
    model.zero_grad()
    logits = model(tokens).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
    loss.backward()
    file["loss"] = loss.detach().numpy()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.numpy()
        for part, rows in parts_of(name, gradient, model.config):
            file["gradients/" + part] = rows


def parts_of(name, value, config):
    """Returns the tensors of a checkpoint that a parameter of transformers 5 fuses."""
    stores_experts = config.model_type in STORED_EXPERTS
    if config.model_type == "olmo_hybrid" and name.endswith("conv1d.weight"):
        for part, rows in zip("qkv", value.split(olmo_hybrid_names.conv_sizes(config))):
            yield name.replace("conv1d", f"{part}_conv1d"), rows
        return
    if config.model_type == "kimi_linear":
        yield from kimi_parts(name, value)
        return
    if ".mixer.experts." in name:
        for expert, rows in enumerate(value):
            yield name.replace("experts.", f"experts.{expert}.") + ".weight", rows
    elif not stores_experts and name.endswith("experts.gate_up_proj"):
        for expert, rows in enumerate(value):
            for half, part in zip(("gate", "up"), (rows[:len(rows) // 2], rows[len(rows) // 2:])):
                yield f"{name.removesuffix('gate_up_proj')}{expert}.{half}_proj.weight", part
    elif not stores_experts and name.endswith("experts.down_proj"):
        for expert, rows in enumerate(value):
            yield f"{name.removesuffix('down_proj')}{expert}.down_proj.weight", rows
    else:
        yield name, value


def kimi_parts(name, value):
    """Returns the tensors of a checkpoint of Kimi-Linear that transformers 5 fuses into one parameter."""
    name = name.replace(".forget_gate.", ".")
    for part in ("experts", "gate.", "shared_experts"):
        name = name.replace(f".mlp.{part}", f".block_sparse_moe.{part}")
    if name.endswith(".gate_proj.weight") or not name.endswith(("conv1d.weight", "experts.gate_up_proj", "experts.down_proj")):
        yield name, value
    elif name.endswith("conv1d.weight"):
        for part, rows in zip("qkv", value.reshape(3, -1, *value.shape[1:])):
            yield name.replace("conv1d", f"{part}_conv1d"), rows
    else:
        is_up = name.endswith("gate_up_proj")
        for expert, rows in enumerate(value):
            for part, half in zip(("w1", "w3") if is_up else ("w2",), rows.reshape(2 if is_up else 1, -1, rows.shape[-1])):
                yield name[:name.rindex(".") + 1] + f"{expert}.{part}.weight", half


def answer(folder, model, tokens):
    model = model.double().eval()
    base = model.base_model if model.base_model is not model else model.model  # Llama 4 has no member of its prefix
    if getattr(base, "rotary_emb", None) is not None:
        base.rotary_emb = type(base.rotary_emb)(model.config)  # again, in double precision
    with torch.no_grad(), h5py.File(folder / "expected.h5", "w") as file:
        file["tokens"] = tokens.to(torch.int32).numpy()
        file["logits"] = model(tokens).logits.numpy()
        if hasattr(model.config, "kv_lora_rank"):
            write_gradients(file, model, tokens)
        file["generated"] = model.generate(
            tokens[:, :PROMPT], attention_mask=torch.ones(2, PROMPT), do_sample=False, use_cache=True, pad_token_id=0,
            min_new_tokens=LENGTH - PROMPT, max_new_tokens=LENGTH - PROMPT).to(torch.int32).numpy()
        if hasattr(model.config, "kv_lora_rank"):
            return
        with torch.enable_grad():
            logits = model(tokens).logits[:, :-1]
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").backward()
        is_nemotron = model.config.model_type == "nemotron_h"  # checkpoints have other names
        for name, parameter in model.named_parameters():
            name = name.replace("model.", "backbone.") if is_nemotron else name
            for part, rows in parts_of(name, parameter.grad, model.config):
                gradient = rows.flatten()
                file[f"gradients/{part}"] = gradient[torch.arange(GRADIENTS) * STEP % len(gradient)].numpy()


def answer_mtp(folder, model, prediction, tokens):
    """Writes the losses of all tokens, and elements of the gradient of their weighted sum."""
    model, prediction = model.double().eval(), prediction.double().eval()
    base, is_nemotron = model.get_decoder(), model.config.model_type == "nemotron_h"
    if not is_nemotron:
        base.rotary_emb = type(base.rotary_emb)(model.config)  # again, in double precision
    prediction.tie_with_main_model(model)
    with h5py.File(folder / "expected.h5", "w") as file:
        file["tokens"] = tokens.to(torch.int32).numpy()
        losses = mtp.losses(model, prediction, tokens)
        for depth, loss in enumerate(losses):
            file[f"losses/{depth}"] = loss.detach().numpy()
        (losses[0].sum() + MTP_FACTOR / (len(losses) - 1) * sum(loss.sum() for loss in losses[1:])).backward()
        gradients = mtp.published(model, prediction, lambda tensor: tensor.grad)
        for name, parameter in model.named_parameters():
            gradients.update(mtp.parts_of(name.replace("model.", "backbone.") if is_nemotron else name, parameter.grad))
        for name, values in gradients.items():
            flat = values.flatten()
            file[f"gradients/{name}"] = flat[torch.arange(GRADIENTS) * STEP % len(flat)].numpy()


def main():
    models, predictions = {}, {}
    for name, (family, options) in MODELS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        folder = pathlib.Path(sys.argv[1]) / name
        models[folder] = write(folder, family, options)
        if name.startswith("mtp/"):
            predictions[folder] = mtp.make(models[folder][0], MTP_LAYERS.get(name, 1))
            mtp.publish(folder, models[folder][0], predictions[folder])
    use_double_precision()
    for folder, (model, tokens) in models.items():
        if folder in predictions:
            answer_mtp(folder, model, predictions[folder], tokens)
        else:
            answer(folder, model, tokens)
        (folder / "generation_config.json").unlink(missing_ok=True)
        print(folder, transformers.__version__)


if __name__ == "__main__":
    main()
