// The two ways to compute attention on a GPU, with ops.h's signatures.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

/// Kernels of this program: any type, head_dim up to 256, all options. Sums are in a fixed order.
struct TiledAttention {
  static decltype(ops::attention) forward;
  static decltype(ops::attention_backward) backward;
};

/// cuDNN's fused kernels, several times as fast. They have the cases that pretraining needs: bf16 or fp16, as many keys
/// as queries, head_dim a multiple of 8 up to 128, no dropout. False, and nothing done, for all others.
struct FusedAttention {
  static bool forward(const Heads& q, const Heads& k, const Heads& v, const AttentionOptions& options, Tensor& out,
                      Tensor& lse);
  static bool backward(const Tensor& dout, const Heads& q, const Heads& k, const Heads& v, const Tensor& out,
                       const Tensor& lse, const AttentionOptions& options, Heads& dq, Heads& dk, Heads& dv);
};

}  // namespace mcpp
