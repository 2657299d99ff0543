#!/usr/bin/env python3
"""Trains a model with multi-latent attention, Gated DeltaNet, Kimi Delta Attention or Mamba-2 in PyTorch, for comparison
with megatron_cpp (bench/vs_torch.sh). The sizes are those of bench/mla_14m.toml, gated_delta_net_14m.toml,
kimi_delta_attention_14m.toml and mamba_14m.toml.

Uses scaled_dot_product_attention, fused projections, fused AdamW, global-norm clipping, autocast for bf16, and optionally
torch.compile. The scans are the chunked algorithms of Transformers (torch_chunk_gated_delta_rule, and the SSD form of
Mamba-2) as batched matmuls over all chunks of 64 positions, with two changes: the inverse of a chunk's triangular matrix
is a product of log2(64) matrices instead of a loop over its rows, and convolutions are sums of shifted elementwise
products, which torch.compile fuses. Products with decays of key channels are matmuls between blocks of 16 positions, and
elementwise products inside of these, as in flash-linear-attention. Prints one JSON line.

Requirements, in a separate virtual environment: pip install torch numpy
Example: torch_architectures.py --model mamba --seq 512 --batch 4 --dtype bf16 --compile
"""
import argparse, json, math, resource, statistics, time
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch_gpt import add_step_options, prepare_torch, rope_tables, rotate

HIDDEN, HEADS, VOCAB, EPSILON = 384, 6, 8192, 1e-5
PATTERNS = {"mla": ["A", "F"] * 6, "gated_delta_net": ["G", "F", "G", "F", "*", "F"] * 2,
            "kimi_delta_attention": ["K", "F", "K", "F", "*", "F"] * 2, "mamba": list("M-M*-M-M*-")}
FFN = {"mla": 1024, "gated_delta_net": 768, "kimi_delta_attention": 768, "mamba": 1536}


def linear(into, out):
    return nn.Linear(into, out, bias=False)


def causal_conv(x, weight, bias):
    """x: [b, s, channels]; weight: [channels, taps]."""
    taps = weight.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    out = sum(padded[:, i : i + x.shape[1]] * weight[:, i] for i in range(taps))
    return F.silu(out if bias is None else out + bias).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, rope):
        super().__init__()
        self.rope = rope
        self.qkv, self.proj = linear(HIDDEN, 3 * HIDDEN), linear(HIDDEN, HIDDEN)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        if self.rope:
            tables = rope_tables(s, h // HEADS, x.device)
            q, k = rotate(q, *tables), rotate(k, *tables)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(o.transpose(1, 2).reshape(b, s, h))


class MultiLatentAttention(nn.Module):
    def __init__(self, q_rank=192, kv_rank=128, nope=64, rope=32, value=64):
        super().__init__()
        self.sizes = q_rank, kv_rank, nope, rope, value
        self.down = linear(HIDDEN, q_rank + kv_rank + rope)
        self.q_norm, self.kv_norm = nn.RMSNorm(q_rank, eps=EPSILON), nn.RMSNorm(kv_rank, eps=EPSILON)
        self.q_up, self.kv_up = linear(q_rank, HEADS * (nope + rope)), linear(kv_rank, HEADS * (nope + value))
        self.proj = linear(HEADS * value, HIDDEN)

    def forward(self, x):
        b, s, _ = x.shape
        q_rank, kv_rank, nope, rope, value = self.sizes
        q, kv, k_rope = self.down(x).split([q_rank, kv_rank, rope], -1)
        q = self.q_up(self.q_norm(q)).view(b, s, HEADS, -1).transpose(1, 2)
        k, v = self.kv_up(self.kv_norm(kv)).view(b, s, HEADS, -1).transpose(1, 2).split([nope, value], -1)
        tables = rope_tables(s, rope, x.device)
        q = torch.cat([q[..., :nope], rotate(q[..., nope:], *tables)], -1)
        k = torch.cat([k, rotate(k_rope.view(b, 1, s, rope), *tables).expand(b, HEADS, s, rope)], -1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(o.transpose(1, 2).reshape(b, s, HEADS * value))


def inverse_of_unit_minus(a):
    """(I - a)^-1 for strictly lower triangular a, as the product of I + a^(2^k)."""
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    inverse, power, n = eye + a, a, 2
    while n < a.shape[-1]:
        power = power @ power
        inverse = inverse + inverse @ power
        n *= 2
    return inverse


def differences(g):
    """exp(g_i - g_j) for i >= j, else 0, of sums g [..., c]."""
    c = g.shape[-1]
    mask = torch.ones(c, c, dtype=torch.bool, device=g.device).tril()
    return (g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(~mask, -torch.inf).exp()


def pass_states(q_grown, scores, value, k_cum, k_rest, total):
    """Returns the outputs of a delta rule from the products of the chunks, [b, heads, chunks, ...], and passes the
    state from chunk to chunk. total: the decay of the state in each chunk."""
    state, out = torch.zeros_like(k_rest[:, :, 0] @ value[:, :, 0]), []
    for i in range(value.shape[2]):
        u = value[:, :, i] - k_cum[:, :, i] @ state
        out.append(q_grown[:, :, i] @ state + scores[:, :, i] @ u)
        state = state * total[:, :, i] + k_rest[:, :, i] @ u
    return torch.stack(out, 2)


class GatedDeltaNet(nn.Module):
    def __init__(self, chunk, key_heads=4, value_heads=8, dim=96, taps=4):
        super().__init__()
        self.sizes = chunk, key_heads, value_heads, dim
        k, v = key_heads * dim, value_heads * dim
        self.in_proj = linear(HIDDEN, 2 * k + 2 * v + 2 * value_heads)
        self.conv = nn.Parameter(torch.empty(2 * k + v, taps).uniform_(-0.5, 0.5))
        self.a_log = nn.Parameter(torch.empty(value_heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.ones(value_heads))
        self.norm = nn.RMSNorm(dim, eps=EPSILON)
        self.out_proj = linear(v, HIDDEN)

    def scan(self, q, k, v, beta, g):
        """q, k, v: [b, heads, chunks, c, dim]; beta, g: [b, heads, chunks, c]."""
        g = g.cumsum(-1)
        decay = differences(g)
        k_beta, v_beta, growth = k * beta.unsqueeze(-1), v * beta.unsqueeze(-1), g.exp().unsqueeze(-1)
        inverse = inverse_of_unit_minus(-((k_beta @ k.transpose(-1, -2)) * decay).tril(-1))
        value, k_cum = inverse @ v_beta, inverse @ (k_beta * growth)
        scores = (q @ k.transpose(-1, -2)) * decay
        q_grown = q * growth
        k_rest = (k * (g[..., -1:] - g).exp().unsqueeze(-1)).transpose(-1, -2)
        total = g[..., -1].exp()[..., None, None]
        return pass_states(q_grown, scores, value, k_cum, k_rest, total)

    def forward(self, x):
        chunk, key_heads, heads, dim = self.sizes
        b, s, _ = x.shape
        k, v = key_heads * dim, heads * dim
        qkv, z, beta, alpha = self.in_proj(x).split([2 * k + v, v, heads, heads], -1)
        q, key, value = causal_conv(qkv, self.conv, None).split([k, k, v], -1)

        def by_chunk(t, n):
            return t.float().view(b, s // chunk, chunk, n, -1).permute(0, 3, 1, 2, 4)

        def unit(t):
            t = by_chunk(t, key_heads)
            t = t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6)
            return t.repeat_interleave(heads // key_heads, 1)

        g = -self.a_log.exp() * F.softplus(alpha.float() + self.dt_bias)
        o = self.scan(unit(q) / math.sqrt(dim), unit(key), by_chunk(value, heads), by_chunk(beta.float().sigmoid(), heads).squeeze(-1),
                      by_chunk(g, heads).squeeze(-1))
        o = self.norm(o.permute(0, 2, 3, 1, 4).reshape(b, s, heads, dim)) * F.silu(z.view(b, s, heads, dim).float())
        return self.out_proj(o.reshape(b, s, v).to(x.dtype))


def decayed_products(x, k, g, block=16):
    """Sums over d of x_id k_jd exp(g_id - g_jd) for i >= j, else 0. x, k, g: [..., c, d], g: sums of logarithms."""
    rows, c = [], g.shape[-2]
    mask = torch.ones(block, block, dtype=torch.bool, device=g.device).tril().unsqueeze(-1)
    for begin in range(0, c, block):
        part = slice(begin, begin + block)
        pairs = (g[..., part, :].unsqueeze(-2) - g[..., part, :].unsqueeze(-3)).masked_fill(~mask, -torch.inf).exp()
        own = (x[..., part, :].unsqueeze(-2) * k[..., part, :].unsqueeze(-3) * pairs).sum(-1)
        before = g[..., begin - 1 : begin, :] if begin else g[..., :1, :]
        earlier = (x[..., part, :] * (g[..., part, :] - before).exp()) @ (
            k[..., :begin, :] * (before - g[..., :begin, :]).exp()).transpose(-1, -2)
        rows.append(F.pad(torch.cat([earlier, own], -1), (0, c - begin - block)))
    return torch.cat(rows, -2)


class KimiDeltaAttention(nn.Module):
    def __init__(self, chunk, heads=6, dim=96, taps=4):
        super().__init__()
        self.sizes = chunk, heads, dim
        width = heads * dim
        self.in_proj = linear(HIDDEN, 3 * width + heads)
        self.down = linear(HIDDEN, 2 * dim)
        self.gate_up, self.decay_up = linear(dim, width), linear(dim, width)
        self.conv = nn.Parameter(torch.empty(3 * width, taps).uniform_(-0.5, 0.5))
        self.a_log = nn.Parameter(torch.empty(heads, 1).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(torch.full((heads, dim), -4.0))
        self.norm = nn.RMSNorm(dim, eps=EPSILON)
        self.out_proj = linear(width, HIDDEN)

    def scan(self, q, k, v, beta, g):
        """q, k, v, g: [b, heads, chunks, c, dim]; beta: [b, heads, chunks, c, 1]."""
        g = g.cumsum(-2)
        growth = g.exp()
        inverse = inverse_of_unit_minus(-(beta * decayed_products(k, k, g)).tril(-1))
        value, k_cum = inverse @ (v * beta), inverse @ (k * beta * growth)
        scores, q_grown = decayed_products(q, k, g), q * growth
        k_rest = (k * (g[..., -1:, :] - g).exp()).transpose(-1, -2)
        total = growth[..., -1, :].unsqueeze(-1)
        return pass_states(q_grown, scores, value, k_cum, k_rest, total)

    def forward(self, x):
        chunk, heads, dim = self.sizes
        b, s, _ = x.shape
        qkv, beta = self.in_proj(x).split([3 * heads * dim, heads], -1)
        gate, decay = self.down(x).chunk(2, -1)
        gate, decay = self.gate_up(gate).view(b, s, heads, dim), self.decay_up(decay).view(b, s, heads, dim)
        q, key, value = causal_conv(qkv, self.conv, None).chunk(3, -1)

        def by_chunk(t):
            return t.float().view(b, s // chunk, chunk, heads, -1).permute(0, 3, 1, 2, 4)

        def unit(t):
            t = by_chunk(t)
            return t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6)

        g = -self.a_log.exp() * F.softplus(decay.float() + self.dt_bias)
        o = self.scan(unit(q) / math.sqrt(dim), unit(key), by_chunk(value), by_chunk(beta.float().sigmoid()), by_chunk(g))
        o = self.norm(o.permute(0, 2, 3, 1, 4).reshape(b, s, heads, dim)) * gate.float().sigmoid()
        return self.out_proj(o.reshape(b, s, heads * dim).to(x.dtype))


class Mamba2(nn.Module):
    def __init__(self, chunk, groups=2, heads=12, dim=64, state=128, taps=4):
        super().__init__()
        self.sizes = chunk, groups, heads, dim, state
        conv = heads * dim + 2 * groups * state
        self.in_proj = linear(HIDDEN, heads * dim + conv + heads)
        self.conv = nn.Parameter(torch.empty(conv, taps).uniform_(-0.5, 0.5))
        self.conv_bias = nn.Parameter(torch.zeros(conv))
        self.a_log = nn.Parameter(torch.arange(1, heads + 1).float().log())
        self.dt_bias, self.skip = nn.Parameter(torch.ones(heads)), nn.Parameter(torch.ones(heads))
        self.norm = nn.Parameter(torch.ones(heads * dim))
        self.out_proj = linear(heads * dim, HIDDEN)

    def scan(self, q, k, v, g):
        """q, k: [b, groups, 1, chunks, c, state]; v: [b, groups, heads per group, chunks, c, dim]; g: without dim."""
        g = g.cumsum(-1)
        y = ((q @ k.transpose(-1, -2)) * differences(g)) @ v
        # States of all chunks from those of their own positions, as one matmul over chunks.
        own = k.transpose(-1, -2) @ (v * (g[..., -1:] - g).exp().unsqueeze(-1))
        between = differences(F.pad(g[..., -1], (1, 0)).cumsum(-1))[..., :-1, 1:]
        before = torch.einsum("bghzc,bghcnp->bghznp", between, own)
        return y + g.exp().unsqueeze(-1) * (q @ before)

    def forward(self, x):
        chunk, groups, heads, dim, state = self.sizes
        b, s, _ = x.shape
        z, xbc, dt = self.in_proj(x).split([heads * dim, heads * dim + 2 * groups * state, heads], -1)
        v, k, q = causal_conv(xbc, self.conv, self.conv_bias).split([heads * dim, groups * state, groups * state], -1)
        dt = F.softplus(dt.float() + self.dt_bias)

        def by_chunk(t, per_group):
            return t.reshape(b, s // chunk, chunk, groups, per_group, -1).permute(0, 3, 4, 1, 2, 5)

        v = v.view(b, s, heads, dim).float()
        g = by_chunk(-self.a_log.exp() * dt, heads // groups).squeeze(-1)
        y = self.scan(by_chunk(q.float(), 1), by_chunk(k.float(), 1), by_chunk(v * dt.unsqueeze(-1), heads // groups), g)
        y = y.permute(0, 3, 4, 1, 2, 5).reshape(b, s, heads, dim) + self.skip.unsqueeze(-1) * v
        y = (y.reshape(b, s, heads * dim) * F.silu(z.float())).view(b, s, groups, -1)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPSILON)
        return self.out_proj((y.view(b, s, heads * dim) * self.norm).to(x.dtype))


class SwiGlu(nn.Module):
    def __init__(self, ffn):
        super().__init__()
        self.up, self.down = linear(HIDDEN, 2 * ffn), linear(ffn, HIDDEN)

    def forward(self, x):
        g, u = self.up(x).chunk(2, -1)
        return self.down(F.silu(g) * u)


class SquaredRelu(nn.Module):
    def __init__(self, ffn):
        super().__init__()
        self.up, self.down = linear(HIDDEN, ffn), linear(ffn, HIDDEN)

    def forward(self, x):
        return self.down(F.relu(self.up(x)).square())


class Model(nn.Module):
    def __init__(self, name, chunk):
        super().__init__()
        make = {"A": MultiLatentAttention, "*": lambda: Attention(rope=name != "mamba"), "G": lambda: GatedDeltaNet(chunk),
                "K": lambda: KimiDeltaAttention(chunk),
                "M": lambda: Mamba2(chunk), "F": lambda: SwiGlu(FFN[name]), "-": lambda: SquaredRelu(FFN[name])}
        self.embedding = nn.Embedding(VOCAB, HIDDEN)
        self.branches = nn.ModuleList(make[kind]() for kind in PATTERNS[name])
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN, eps=EPSILON) for _ in self.branches)
        self.norm = nn.RMSNorm(HIDDEN, eps=EPSILON)
        self.head = linear(HIDDEN, VOCAB)
        self.head.weight = self.embedding.weight
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, t, y):
        x = self.embedding(t)
        for norm, branch in zip(self.norms, self.branches):
            x = x + branch(norm(x))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCAB).float(), y.reshape(-1))


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--model", choices=PATTERNS, required=True)
    a.add_argument("--seq", type=int, default=512)
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--chunk", type=int, default=64, help="positions per chunk of a scan; divides --seq")
    add_step_options(a, ["fp32", "bf16"])
    o = a.parse_args()
    prepare_torch(o.threads)
    with torch.device(o.device):
        model = Model(o.model, o.chunk)
        data = [torch.randint(0, VOCAB, (o.batch, o.seq + 1)) for _ in range(4)]
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    step_model = torch.compile(model) if o.compile else model
    times, loss = [], 0.0
    for i in range(o.warmup + o.steps):
        t0 = time.perf_counter()
        t = data[i % 4]
        with torch.autocast(o.device, torch.bfloat16, enabled=o.dtype == "bf16"):
            out = step_model(t[:, :-1], t[:, 1:])
        out.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        loss = out.item()
        if i >= o.warmup:
            times.append(time.perf_counter() - t0)
    sec, tokens = statistics.median(times), o.batch * o.seq
    print(json.dumps(dict(peer="pytorch " + torch.__version__, model=o.model, parameters=sum(p.numel() for p in model.parameters()),
                          seq=o.seq, dtype=o.dtype, compile=o.compile, chunk=o.chunk, device=o.device, threads=o.threads, tokens_per_step=tokens,
                          step_s=round(sec, 4), tokens_per_s=round(tokens / sec, 1),
                          peak_gib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3), loss=round(loss, 4))))
    assert math.isfinite(loss)


if __name__ == "__main__":
    main()
