// Largest attention logits, for logging.log_max_attention_logit and optimizer.qk_clip.
#pragma once
#include "tensor/ops/ops.h"

namespace mcpp {
namespace ops {

/// Computes largest[head] = max(largest[head], scores of the head) over all pairs of a query and a key that it sees.
/// The scores are computed as in attention(), before the softmax: scaled, and capped if options.soft_cap is set.
/// `largest` is [x.q.heads], of the accumulate dtype. The result does not depend on how queries and keys are divided
/// into calls.
void max_attention_logits(const QkvHeads& x, const AttentionOptions& options, Tensor& largest);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct AttentionLogitKernels {
  static void max_attention_logits(const QkvHeads& x, const AttentionOptions& options, Tensor& largest);
};

}  // namespace mcpp
