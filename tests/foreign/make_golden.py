"""Writes tests/golden/foreign/*.tar.gz: checkpoints of training runs in PyTorch and Megatron Core, with the losses of the
steps that follow.

usage: make_golden.py torch|megatron|experts OUTPUT_FOLDER
"torch" needs torch; "megatron" and "experts" also need megatron-core and psutil. All run on CPUs, with one or two
processes.

Every archive has expected.json: the tokens of the next steps, [steps, batch, sequence + 1], and their losses.
"""

import argparse
import contextlib
import gzip
import json
import os
import pathlib
import sys
import tarfile
import tempfile
import unittest.mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

VOCAB, WIDTH, HEADS, GROUPS, FFN, LAYERS, SEQUENCE, BATCH = 24, 16, 4, 2, 16, 2, 16, 4
BEFORE, AFTER = 3, 5
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1


class Attention(torch.nn.Module):
    """Attention of torchtitan's Llama: RoPE rotates adjacent channels, as complex numbers."""

    def __init__(self):
        super().__init__()
        dim = WIDTH // HEADS
        self.wq = torch.nn.Linear(WIDTH, HEADS * dim, bias=False)
        self.wk = torch.nn.Linear(WIDTH, GROUPS * dim, bias=False)
        self.wv = torch.nn.Linear(WIDTH, GROUPS * dim, bias=False)
        self.wo = torch.nn.Linear(HEADS * dim, WIDTH, bias=False)

    def forward(self, x, rotation):
        batch, length, _ = x.shape
        q, k, v = (w(x).view(batch, length, -1, WIDTH // HEADS) for w in (self.wq, self.wk, self.wv))
        q, k = (torch.view_as_real(torch.view_as_complex(y.reshape(*y.shape[:-1], -1, 2)) * rotation[:, None]).flatten(3)
                for y in (q, k))
        k, v = (y.repeat_interleave(HEADS // GROUPS, dim=2) for y in (k, v))
        out = torch.nn.functional.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)), is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = torch.nn.Linear(WIDTH, FFN, bias=False)
        self.w2 = torch.nn.Linear(FFN, WIDTH, bias=False)
        self.w3 = torch.nn.Linear(WIDTH, FFN, bias=False)

    def forward(self, x):
        return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.attention_norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.ffn_norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)

    def forward(self, x, rotation):
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.feed_forward(self.ffn_norm(x))


class Transformer(torch.nn.Module):
    """Llama with the names of torchtitan."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = torch.nn.Embedding(VOCAB, WIDTH)
        self.layers = torch.nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm = torch.nn.RMSNorm(WIDTH, eps=1e-5)
        self.output = torch.nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        dim = WIDTH // HEADS
        angles = torch.outer(torch.arange(tokens.shape[1]).float(), 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
        rotation = torch.polar(torch.ones_like(angles), angles)
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, rotation)
        return self.output(self.norm(x))


def batches():
    generator = torch.Generator().manual_seed(7)
    # Sums of neighbors modulo the vocabulary, so that there is something to learn.
    steps = torch.randint(0, 4, (BEFORE + AFTER, BATCH, SEQUENCE + 1), generator=generator)
    return steps.cumsum(-1) % VOCAB


def optimizer_of(model):
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)


def randomize(model, seed=1):
    """Draws weights from a generator, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = 0.2 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise + (1 if parameter.dim() == 1 else 0))


def train(loss_of, optimizer, tokens, count):
    losses = []
    for step in range(count):
        loss = loss_of(tokens[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def write_expected(folder, tokens, losses):
    (folder / "expected.json").write_text(json.dumps({"tokens": tokens.tolist(), "losses": losses}))


def archive(folder, output):
    """Archives a folder reproducibly."""
    def anonymous(entry):
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry
    with gzip.GzipFile(output, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                tar.add(path, path.relative_to(folder), filter=anonymous)
    print(f"{output}: {output.stat().st_size} bytes")


def run_ranks(function, arguments, ranks=2):
    torch.multiprocessing.spawn(function, (ranks, *arguments), ranks)


def join_group(rank, ranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)


def save_sharded(rank, ranks, state, folder):
    """Saves tensors in two shards, as FSDP2 does."""
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    join_group(rank, ranks, 29531)
    mesh = init_device_mesh("cpu", (ranks,))
    def shard(value):
        is_sharded = isinstance(value, torch.Tensor) and value.dim() > 0
        return distribute_tensor(value, mesh, [Shard(0)]) if is_sharded else value
    dcp.save({key: {k: shard(v) for k, v in value.items()} if isinstance(value, dict) else shard(value)
              for key, value in state.items()}, checkpoint_id=str(folder))
    dist.destroy_process_group()


def make_torch(output):
    torch.manual_seed(1)
    model, tokens = Transformer(), batches()
    randomize(model)
    optimizer = optimizer_of(model)
    def loss_of(sample):
        return torch.nn.functional.cross_entropy(model(sample[:, :-1]).flatten(0, 1), sample[:, 1:].flatten())
    train(loss_of, optimizer, tokens, BEFORE)
    flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    named = get_optimizer_state_dict(model, optimizer)
    state = {**{k: v.detach().clone() for k, v in model.state_dict().items()},
             "optimizer": {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in flat.items()},
             "train_state": {"step": torch.tensor(BEFORE, dtype=torch.int32)},
             "dataloader": {"dp_rank_0": b"opaque"}}
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "torchtitan"
        folder.mkdir()
        file = pathlib.Path(scratch) / "state_dict"
        file.mkdir()
        torch.save({"model": model.state_dict(), "optimizer": named, "step": BEFORE}, file / "run.pt")
        run_ranks(save_sharded, (state, folder))
        losses = train(loss_of, optimizer, tokens[BEFORE:], AFTER)
        for name in (folder, file):
            write_expected(name, tokens[BEFORE:], losses)
            archive(name, output / f"{name.name}.tar.gz")
    make_numbered(output)


def make_numbered(output):
    """Saves a small optimizer whose state torch.optim numbers, in one group."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    randomize(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    torch.save({"state_dict": {f"module.{k}": v for k, v in model.state_dict().items()},
                "optimizer_state_dict": optimizer.state_dict(), "iteration": 1}, output / "numbered.pt")


def megatron_rank(rank, ranks, folder, legacy):
    join_group(rank, ranks, 29541)
    torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig
    from megatron.core.optimizer.optimizer import FP32Optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS, num_query_groups=GROUPS, ffn_hidden_size=FFN,
        use_cpu_initialization=True, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        normalization="RMSNorm", add_bias_linear=False, layernorm_epsilon=1e-5, hidden_dropout=0.0, attention_dropout=0.0,
        tensor_model_parallel_size=ranks, pipeline_dtype=torch.float32, bias_activation_fusion=False,
        masked_softmax_fusion=False, persist_layer_norm=False, bias_dropout_fusion=False, apply_rope_fusion=False,
        gradient_accumulation_fusion=False)
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=VOCAB,
                     max_sequence_length=SEQUENCE, position_embedding_type="rope",
                     share_embeddings_and_output_weights=False)
    randomize(model, seed=1)
    with torch.no_grad():  # shards differ between ranks; replicated parameters must not
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(1 + 0.5 * rank)
    torch_optimizer = optimizer_of(model)
    make_tensor = torch.tensor
    with unittest.mock.patch("torch.tensor", lambda *values, device=None, **types: make_tensor(*values, **types)):
        optimizer = FP32Optimizer(torch_optimizer, OptimizerConfig(lr=LR, optimizer="adam"), lambda *_: None)
    tokens = batches()
    positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
    mask = torch.triu(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool), 1)[None, None]
    def loss_of(sample):
        return model(sample[:, :-1].contiguous(), positions, mask, labels=sample[:, 1:].contiguous()).mean()
    train(loss_of, torch_optimizer, tokens, BEFORE)

    arguments = argparse.Namespace(
        num_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS, num_query_groups=GROUPS, group_query_attention=True,
        ffn_hidden_size=FFN, swiglu=True, normalization="RMSNorm", norm_epsilon=1e-5, add_bias_linear=False,
        add_qkv_bias=False, position_embedding_type="rope", rotary_base=10000, rotary_percent=1.0, use_rotary_position_embeddings=False,
        untie_embeddings_and_output_weights=True, padded_vocab_size=VOCAB, vocab_size=None, make_vocab_size_divisible_by=12,
        seq_length=SEQUENCE, max_position_embeddings=SEQUENCE, hidden_dropout=0.0, attention_dropout=0.0, kv_channels=WIDTH // HEADS,
        tensor_model_parallel_size=ranks, pipeline_model_parallel_size=1, params_dtype=torch.float32, bf16=False, fp16=False,
        optimizer="adam", lr=LR, min_lr=LR, lr_decay_style="constant", weight_decay=DECAY, adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_eps=EPS, clip_grad=0.0,
        global_batch_size=BATCH, micro_batch_size=BATCH, train_iters=100, seed=1234, iteration=BEFORE,
        consumed_train_samples=BEFORE * BATCH, num_experts=None, apply_layernorm_1p=False, qk_layernorm=False,
        squared_relu=False, init_method_std=0.02, ckpt_format="torch_dist", data_path=["a", "b"])
    model_state = model.sharded_state_dict()
    state = {"args": arguments, "checkpoint_version": 3.0, "iteration": BEFORE, "model": model_state,
             "optimizer": optimizer.sharded_state_dict(model_state), "num_floating_point_operations_so_far": 0,
             "opt_param_scheduler": {"max_lr": LR, "num_steps": BEFORE * BATCH}}
    dist_checkpointing.save(state, str(folder))
    legacy_folder = pathlib.Path(legacy) / "iter_0000003" / f"mp_rank_{rank:02d}"
    legacy_folder.mkdir(parents=True)
    torch.save({"args": arguments, "checkpoint_version": 3.0, "iteration": BEFORE, "model": model.state_dict(),
                "rng_state": [{"torch_rng_state": torch.get_rng_state()[:8].clone()}]}, legacy_folder / "model_optim_rng.pt")
    losses = train(loss_of, torch_optimizer, tokens[BEFORE:], AFTER)
    if rank == 0:
        (pathlib.Path(legacy) / "latest_checkpointed_iteration.txt").write_text(str(BEFORE))
        write_expected(pathlib.Path(folder), tokens[BEFORE:], losses)
        write_expected(pathlib.Path(legacy), tokens[BEFORE:], losses)
    dist.barrier()
    dist.destroy_process_group()


def expert_model(variant):
    """Returns a model of Megatron Core with experts: "stacked" like Qwen-MoE, whose layers are one tensor, or "numbered"
    like DeepSeek-V3, with multi-latent attention, a dense layer and a layer for multi-token prediction."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    common = dict(
        num_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS, ffn_hidden_size=2 * FFN, moe_ffn_hidden_size=FFN,
        num_moe_experts=4, moe_router_topk=2, moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
        moe_token_dispatcher_type="allgather", moe_grouped_gemm=False, moe_shared_expert_intermediate_size=FFN,
        use_cpu_initialization=True, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        normalization="RMSNorm", add_bias_linear=False, layernorm_epsilon=1e-5, hidden_dropout=0.0, attention_dropout=0.0,
        pipeline_dtype=torch.float32, bias_activation_fusion=False, masked_softmax_fusion=False, persist_layer_norm=False,
        bias_dropout_fusion=False, apply_rope_fusion=False, gradient_accumulation_fusion=False)
    if variant == "stacked":
        config = TransformerConfig(**common, num_query_groups=GROUPS, moe_shared_expert_gate=True)
    else:
        config = MLATransformerConfig(
            **common, kv_channels=8, multi_latent_attention=True, qk_layernorm=True, q_lora_rank=12, kv_lora_rank=8,
            qk_head_dim=4, qk_pos_emb_head_dim=4, v_head_dim=8, rope_type="rope", rotary_base=10000,
            moe_layer_freq=[0, 1], mtp_num_layers=1, mtp_loss_scaling_factor=0.1, moe_router_score_function="sigmoid",
            moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=2.5)
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    prediction = None if variant == "stacked" else get_gpt_mtp_block_spec(config, block, use_transformer_engine=False)
    return GPTModel(config, block, vocab_size=VOCAB, max_sequence_length=SEQUENCE, position_embedding_type="rope",
                    share_embeddings_and_output_weights=False, mtp_block_spec=prediction)


def experts_rank(rank, ranks, folder, variant):
    join_group(rank, ranks, 29551)
    torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.optimizer import ChainedOptimizer, OptimizerConfig
    from megatron.core.optimizer.optimizer import FP32Optimizer
    from megatron.core.transformer.moe import moe_utils
    moe_utils.te_general_gemm = None  # not defined without Transformer Engine
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer import multi_latent_attention
    multi_latent_attention.TELinear = ()
    initialize = DotProductAttention.__init__
    # Its heads have kv_channels channels, which are those of keys and of values of the latent model.
    DotProductAttention.__init__ = lambda *args, k_channels=None, v_channels=None, **more: initialize(*args, **more)
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    parallel_state.initialize_model_parallel()
    model = expert_model(variant)
    randomize(model)
    for name, buffer in model.named_buffers():
        if name.endswith("expert_bias"):
            buffer.copy_(torch.linspace(-0.2, 0.2, len(buffer)))
    experts = {name for name, _ in model.named_parameters() if ".experts." in name}
    def adam(is_expert):
        own = torch.nn.ParameterList(p for name, p in model.named_parameters() if (name in experts) == is_expert)
        return optimizer_of(own)
    torch_optimizers = [adam(False), adam(True)]
    make_tensor = torch.tensor
    with unittest.mock.patch("torch.tensor", lambda *values, device=None, **types: make_tensor(*values, **types)):
        optimizer = ChainedOptimizer([FP32Optimizer(o, OptimizerConfig(lr=LR, optimizer="adam"), lambda *_: None)
                                      for o in torch_optimizers])
    tokens = batches()
    positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
    mask = torch.triu(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool), 1)[None, None]
    def loss_of(sample):
        return model(sample[:, :-1].contiguous(), positions, mask, labels=sample[:, 1:].contiguous()).mean()
    def steps(samples, count):
        losses = []
        for step in range(count):
            loss = loss_of(samples[step])
            for one in torch_optimizers:
                one.zero_grad()
            loss.backward()
            for one in torch_optimizers:
                one.step()
            losses.append(loss.item())
        return losses
    steps(tokens, BEFORE)
    model_state = model.sharded_state_dict()
    state = {"args": argparse.Namespace(num_experts=4, consumed_train_samples=BEFORE * BATCH), "checkpoint_version": 3.0,
             "iteration": BEFORE, "model": model_state, "optimizer": optimizer.sharded_state_dict(model_state)}
    dist_checkpointing.save(state, str(folder))
    write_expected(pathlib.Path(folder), tokens[BEFORE:], steps(tokens[BEFORE:], AFTER))
    dist.destroy_process_group()


def make_experts(output):
    with tempfile.TemporaryDirectory() as scratch:
        for variant in ("stacked", "numbered"):
            folder = pathlib.Path(scratch) / f"megatron_experts_{variant}"
            folder.mkdir()
            run_ranks(experts_rank, (folder, variant), ranks=1)
            archive(folder, output / f"{folder.name}.tar.gz")


def split_stages(legacy, folder):
    """Writes what Megatron-LM saves with two pipeline ranks, each of which numbers its layers from 0."""
    for file in sorted(legacy.rglob("model_optim_rng.pt")):
        state = torch.load(file, weights_only=False)
        for stage in range(2):
            own = {}
            for name, value in state["model"].items():
                parts = name.split(".")
                is_layer = name.startswith("decoder.layers.")
                if (is_layer and int(parts[2]) == stage) or (not is_layer and (parts[0] == "embedding") == (stage == 0)):
                    own[".".join(parts[:2] + ["0"] + parts[3:]) if is_layer else name] = value
            target = folder / "iter_0000003" / f"{file.parent.name}_{stage:03d}"
            target.mkdir(parents=True)
            torch.save({**state, "model": own}, target / file.name)
    for name in ("latest_checkpointed_iteration.txt", "expected.json"):
        (folder / name).write_bytes((legacy / name).read_bytes())


def make_megatron(output):
    with tempfile.TemporaryDirectory() as scratch:
        folder, legacy = pathlib.Path(scratch) / "megatron_dist", pathlib.Path(scratch) / "megatron_legacy"
        folder.mkdir()
        legacy.mkdir()
        run_ranks(megatron_rank, (folder, legacy))
        stages = pathlib.Path(scratch) / "megatron_stages"
        split_stages(legacy, stages)
        for path in (folder, legacy, stages):
            archive(path, output / f"{path.name}.tar.gz")


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    {"torch": make_torch, "megatron": make_megatron, "experts": make_experts}[sys.argv[1]](target)
