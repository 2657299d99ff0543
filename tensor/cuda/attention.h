// The two ways to compute attention on a GPU, with ops.h's signatures.
#pragma once
#include "tensor/ops.h"

namespace mcpp {

/// Kernels of this program: any type, head_dim up to 256, all options. Sums are in a fixed order.
struct TiledAttention {
  static decltype(ops::attention) forward;
  static decltype(ops::attention_backward) backward;
};

/// cuDNN's fused kernels, several times as fast: only where supports() says so.
struct FusedAttention {
  static bool supports(const Heads& q, const Heads& k, const Heads& v, const AttentionOptions& options);
  static decltype(ops::attention) forward;
  static decltype(ops::attention_backward) backward;
};

}  // namespace mcpp
