"""Writes tests/golden/router/expected.h5: gradients of a router and its losses, computed by PyTorch's autograd in double
precision, for router_golden_test.cpp.

usage: make_router_golden.py FILE     (a Python with torch and h5py)

The losses are written from their papers (Fedus et al. 2021, equations 4 to 6; Zoph et al. 2022, equation 5; DeepSeek-V2,
equation 12), as means over tokens, multiplied by the number of tokens, because the loss of a microbatch is a sum.
"""

import sys

import h5py
import torch

LENGTH, BATCH, HIDDEN, EXPERTS, TOPK = 10, 2, 32, 6, 2
BIAS = [0.3, -0.2, 0.1, -0.3, 0.2, 0.0]  # of experts, for their choice only
AUX, Z = 0.3, 0.2
CASES = {
    "softmax": dict(),
    "pre_softmax": dict(pre_softmax=True),
    "sigmoid": dict(score=torch.sigmoid),
    "softmax_by_sample": dict(scopes={"sample": 1}),
    "sigmoid_by_sample": dict(score=torch.sigmoid, scopes={"sample": 1}),
    "sqrtsoftplus": dict(score=lambda x: torch.nn.functional.softplus(x).sqrt()),
    "sigmoid_with_bias_by_sample": dict(score=torch.sigmoid, scopes={"sample": 1}, has_bias=True),
    "sqrtsoftplus_with_bias_by_both": dict(score=lambda x: torch.nn.functional.softplus(x).sqrt(), has_bias=True,
                                           scopes={"microbatch": 0.25, "sample": 0.75}),
}


def routed(logits, score, pre_softmax, has_bias):
    """Returns the experts of each token, their weights, the scores of all experts, which add up to 1, and the experts
    that losses count, which are chosen without the bias."""
    if score:
        scores = score(logits)
        experts = (scores + torch.tensor(BIAS, dtype=torch.float32) if has_bias else scores).topk(TOPK)[1]
        chosen = scores.gather(-1, experts)
        return (experts, chosen / (chosen.sum(-1, keepdim=True) + 1e-20), scores / (scores.sum(-1, keepdim=True) + 1e-20),
                scores.topk(TOPK)[1])
    scores = logits.softmax(-1)
    if pre_softmax:
        weights, experts = scores.topk(TOPK)
        return experts, weights, scores, experts
    chosen, experts = logits.topk(TOPK)
    return experts, chosen.softmax(-1), scores, experts


def balance_loss(experts, scores):
    """Returns num_experts times the sum over experts of (share of the choices) x (mean score)."""
    share = torch.nn.functional.one_hot(experts, EXPERTS).sum((0, 1)).double() / experts.numel()
    return EXPERTS * (share * scores.mean(0)).sum()


def answer(group, x, weight, d_weights, score=None, pre_softmax=False, scopes={"microbatch": 1}, has_bias=False):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    logits = x @ weight.T
    experts, weights, scores, counted = routed(logits, score, pre_softmax, has_bias)
    losses = {"microbatch": balance_loss(counted, scores),  # row r belongs to sample r % BATCH
              "sample": torch.stack([balance_loss(counted[i::BATCH], scores[i::BATCH]) for i in range(BATCH)]).mean()}
    balance = sum(share * losses[scope] for scope, share in scopes.items())
    z = logits.logsumexp(-1).square().mean()
    ((weights * d_weights).sum() + len(x) * (AUX * balance + Z * z)).backward()
    group["experts"] = experts.to(torch.int32).numpy()
    group["weights"] = weights.detach().numpy()
    group["balance_loss"] = [len(x) * balance.item()]
    group["z_loss"] = [len(x) * z.item()]
    group["dx"], group["d_weight"] = x.grad.numpy(), weight.grad.numpy()


def main():
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    rows = LENGTH * BATCH
    x, weight = torch.randn(rows, HIDDEN), 0.3 * torch.randn(EXPERTS, HIDDEN)
    d_weights = torch.randn(rows, TOPK)
    with h5py.File(sys.argv[1], "w") as file:
        for name, tensor in {"x": x, "weight": weight, "d_weights": d_weights}.items():
            file[name] = tensor.numpy()
        for name, options in CASES.items():
            answer(file.create_group(name), x, weight, d_weights, **options)


main()
