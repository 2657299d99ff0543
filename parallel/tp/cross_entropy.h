// Cross entropy over a vocabulary split by columns over the tensor-parallel group (Shoeybi et al. 2019, section 3):
// only three numbers per token cross the group, never the logits.
#pragma once
#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace mcpp {

/// The loss of each token, and its sum.
struct TokenLosses {
  Tensor per_token;  ///< [T] fp32 (fp64): -log p(target); 0 where there is no target
  double sum = 0;    ///< in fp64, in token order
  i64 tokens = 0;    ///< number of targets
};

/// logits [T, V / tp] with columns from `first_row` of the padded vocabulary, of which the first `vocab_size` are real;
/// targets int32 [T], negative = none. When `gradient_scale` is not 0 the logits are overwritten by their gradient
/// times that scale.
TokenLosses vocab_parallel_cross_entropy(Tensor& logits, const Tensor& targets, i64 first_row, i64 vocab_size,
                                         double gradient_scale, Communicator& tp);

}  // namespace mcpp
