// The two ways to compute attention on a GPU, with ops.h's signatures.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

/// Kernels of this program: any type, head_dim up to 256, all options. Sums are in a fixed order, and no memory goes
/// with the square of the sequence.
struct TiledAttention {
  static decltype(ops::attention) forward;
  static decltype(ops::attention_backward) backward;
};

/// cuDNN's fused kernels, several times as fast. They have the cases that pretraining needs: bf16 or fp16, as many keys
/// as queries, which stand where these do or before all of them, one document to a sample, no window that hides a key,
/// head_dim a multiple of 8 up to 128, no dropout, no soft cap. False, and nothing done, for all others: of more than
/// one query that is noted, with its reason (CudaDevice::add_notice).
struct FusedAttention {
  static bool forward(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y);
  /// How many queries, and keys, backward() has the memory for at a time: all where it gathers gradients by atomic
  /// additions, or cannot compute this at all. Gradients of a wider type than the operands' it has densely first.
  static i64 backward_rows(const QkvHeads& x, const QkvHeads& dx, const AttentionOptions& options);
  static bool backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const AttentionOptions& options,
                       QkvHeads& dx);
};

}  // namespace mcpp
