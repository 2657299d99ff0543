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
AUX, Z = 0.3, 0.2
CASES = {
    "softmax": dict(),
    "pre_softmax": dict(pre_softmax=True),
    "sigmoid": dict(sigmoid=True),
    "softmax_by_sample": dict(by_sample=True),
    "sigmoid_by_sample": dict(sigmoid=True, by_sample=True),
}


def routed(logits, sigmoid, pre_softmax):
    """Returns the experts of each token, their weights, and the scores of all experts, which add up to 1."""
    if sigmoid:
        scores = torch.sigmoid(logits)
        chosen, experts = scores.topk(TOPK)
        return experts, chosen / (chosen.sum(-1, keepdim=True) + 1e-20), scores / (scores.sum(-1, keepdim=True) + 1e-20)
    scores = logits.softmax(-1)
    if pre_softmax:
        weights, experts = scores.topk(TOPK)
        return experts, weights, scores
    chosen, experts = logits.topk(TOPK)
    return experts, chosen.softmax(-1), scores


def balance_loss(experts, scores):
    """Returns num_experts times the sum over experts of (share of the choices) x (mean score)."""
    share = torch.nn.functional.one_hot(experts, EXPERTS).sum((0, 1)).double() / experts.numel()
    return EXPERTS * (share * scores.mean(0)).sum()


def answer(group, x, weight, d_weights, sigmoid=False, pre_softmax=False, by_sample=False):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    logits = x @ weight.T
    experts, weights, scores = routed(logits, sigmoid, pre_softmax)
    if by_sample:  # row r belongs to sample r % BATCH
        balance = torch.stack([balance_loss(experts[i::BATCH], scores[i::BATCH]) for i in range(BATCH)]).mean()
    else:
        balance = balance_loss(experts, scores)
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
