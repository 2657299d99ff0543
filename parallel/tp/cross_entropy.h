// Cross entropy over a vocabulary split by columns over the tensor-parallel group (Shoeybi et al. 2019, section 3):
// only three numbers per token cross the group, never the logits.
#pragma once
#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace mcpp {

/// The loss of each token, and its sum; on the device, so that the host need not wait.
struct TokenLosses {
  Tensor per_token;  ///< [T] fp32 (fp64): -log p(target); 0 where there is no target
  Tensor totals;     ///< fp64 [2]: the sum of losses, in token order on a CPU, and the number of targets

  double sum() const;  ///< waits for it
  i64 tokens() const;  ///< waits for it
};

/// logits [T, V / tp] with columns from `first_row` of the padded vocabulary, of which the first `vocab_size` are real;
/// targets int32 [T], negative = none. When `grad_scale` is not 0 the logits are overwritten by their gradient
/// times that scale, or by that of what ops::soft_cap() made them from, with a cap of `soft_cap`, where that is not 0.
TokenLosses vocab_parallel_cross_entropy(Tensor& logits, const Tensor& targets, i64 first_row, i64 vocab_size,
                                         double grad_scale, Communicator& tp, double soft_cap = 0);

}  // namespace mcpp
