#include "parallel/tp/cross_entropy.h"

#include <algorithm>

#include "tensor/dtype.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Combines per-token values over the shards of the vocabulary: largest logit, sum of exponentials, and target logit.
void combine(Tensor& largest, Tensor& sum_exp, Tensor& target_logit, Communicator& tp) {
  Tensor own_largest = Tensor::like(largest);
  ops::copy(largest, own_largest);
  tp.all_reduce(largest, ReduceOp::Max).wait();
  ops::cross_entropy_rescale(own_largest, largest, sum_exp);
  tp.all_reduce(sum_exp, ReduceOp::Sum).wait();
  tp.all_reduce(target_logit, ReduceOp::Sum).wait();
}

}  // namespace

double TokenLosses::sum() const {
  return read_values<double>(totals)[0];
}

i64 TokenLosses::tokens() const {
  return static_cast<i64>(read_values<double>(totals)[1]);
}

TokenLosses vocab_parallel_cross_entropy(Tensor& logits, const Tensor& targets, i64 first_row, i64 vocab_size,
                                         double grad_scale, Communicator& tp, double soft_cap) {
  const i64 valid_columns = std::clamp<i64>(vocab_size - first_row, 0, logits.dim(1));
  const auto vector = [&] { return Tensor::empty({logits.dim(0)}, accumulate_dtype(logits.dtype()), logits.device()); };
  Tensor largest = vector(), sum_exp = vector(), target_logit = vector();
  ops::cross_entropy_stats(logits, targets, first_row, valid_columns, largest, sum_exp, target_logit);
  if (tp.size() > 1) combine(largest, sum_exp, target_logit, tp);
  TokenLosses result{.per_token = vector(),
                     .totals = Tensor::empty({2}, DType::F64, logits.device(), MemoryClass::Workspace)};
  ops::cross_entropy_losses(largest, sum_exp, target_logit, targets, result.per_token, result.totals);
  const Tensor& lse = largest;
  if (grad_scale != 0)
    ops::cross_entropy_gradient(logits, targets, first_row, valid_columns, lse, grad_scale, soft_cap);
  return result;
}

}  // namespace mcpp
