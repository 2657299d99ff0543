// Cross entropy over a vocabulary sharded over the tensor-parallel group (Shoeybi et al. 2019, section 3): only three
// values per token are communicated, never the logits.
#pragma once
#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Per-token losses and their sum, kept on the device so that the host need not wait.
struct TokenLosses {
  Tensor per_token;  ///< [T] fp32 (fp64): -log p(target); 0 without a target
  Tensor totals;     ///< fp64 [2]: sum of losses, in token order on a CPU, and number of targets

  double sum() const;  ///< synchronizes
  i64 tokens() const;  ///< synchronizes
};

/// Computes the losses of logits [T, V / tp], whose columns start at `first_row` of the padded vocabulary, of which the
/// first `vocab_size` are valid. Targets are int32 [T], negative = none. If `grad_scale` is not 0, the logits are
/// overwritten by their gradient times grad_scale; if `soft_cap` is not 0 either, by the gradient of the input of
/// ops::soft_cap() instead.
TokenLosses vocab_parallel_cross_entropy(Tensor& logits, const Tensor& targets, i64 first_row, i64 vocab_size,
                                         double grad_scale, Communicator& tp, double soft_cap = 0);

}  // namespace mcpp
