// Attention implementations on a GPU, with the signatures of ops.h.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {

/// Tiled kernels of this program, for any dtype, head_dim up to 256, and all options. Sums are in a fixed order, and
/// memory is not quadratic in the sequence length.
struct TiledAttention {
  static decltype(ops::attention) forward;
  static decltype(ops::attention_backward) backward;
};

/// Fused kernels of cuDNN, several times faster. They support the cases of pretraining: bf16 or fp16; equal numbers of
/// queries and keys, with the keys at the same positions or all before the queries; one document per sample; no window
/// that hides a key; head_dim a multiple of 8 up to 128; no dropout; no soft cap. In all other cases the functions
/// return false without effect. If there is more than one query, they also record the reason (CudaDevice::add_notice).
struct FusedAttention {
  static bool forward(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y);
  /// Returns the number of queries and keys that backward() can process at once within its memory limit. Returns the
  /// full number if backward() accumulates gradients with atomic additions, or does not support the case. Gradients of
  /// a wider dtype than the operands' are first computed in dense form.
  static i64 backward_rows(const QkvHeads& x, const QkvHeads& dx, const AttentionOptions& options);
  static bool backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y, const AttentionOptions& options,
                       QkvHeads& dx);
};

}  // namespace mcpp
