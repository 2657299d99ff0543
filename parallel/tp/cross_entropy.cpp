#include "parallel/tp/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "tensor/ops.h"

namespace mcpp {
namespace {

/// Per token: the log of the whole softmax denominator, from every rank's largest logit and sum of exponentials.
template <class T>
void combine(Tensor& largest, Tensor& sum_exp, Tensor& target_logit, Communicator& tp) {
  const i64 tokens = largest.numel();
  Tensor own_largest = Tensor::like(largest);
  ops::copy(largest, own_largest);
  tp.all_reduce(largest, ReduceOp::Max).wait();
  for (i64 t = 0; t < tokens; ++t) sum_exp.data<T>()[t] *= std::exp(own_largest.data<T>()[t] - largest.data<T>()[t]);
  tp.all_reduce(sum_exp, ReduceOp::Sum).wait();
  tp.all_reduce(target_logit, ReduceOp::Sum).wait();
}

template <class T>
TokenLosses losses(const Tensor& lse, const Tensor& target_logit, const Tensor& targets) {
  TokenLosses result{.per_token = Tensor::like(lse)};
  for (i64 t = 0; t < lse.numel(); ++t) {
    const bool has_target = targets.data<i32>()[t] >= 0;
    const T loss = has_target ? lse.data<T>()[t] - target_logit.data<T>()[t] : T{0};
    result.per_token.data<T>()[t] = loss;
    result.sum += static_cast<double>(loss);
    result.tokens += has_target;
  }
  return result;
}

template <class T>
TokenLosses cross_entropy(Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns,
                          double gradient_scale, Communicator& tp) {
  const auto vector = [&] { return Tensor::empty({logits.dim(0)}, DTypeOf<T>::value, logits.device()); };
  Tensor largest = vector(), sum_exp = vector(), target_logit = vector();
  ops::cross_entropy_stats(logits, targets, first_row, valid_columns, largest, sum_exp, target_logit);
  if (tp.size() > 1) combine<T>(largest, sum_exp, target_logit, tp);
  Tensor& lse = largest;
  for (i64 t = 0; t < lse.numel(); ++t) lse.data<T>()[t] += std::log(sum_exp.data<T>()[t]);
  if (gradient_scale != 0) ops::cross_entropy_gradient(logits, targets, first_row, valid_columns, lse, gradient_scale);
  return losses<T>(lse, target_logit, targets);
}

}  // namespace

TokenLosses vocab_parallel_cross_entropy(Tensor& logits, const Tensor& targets, i64 first_row, i64 vocab_size,
                                         double gradient_scale, Communicator& tp) {
  const i64 valid_columns = std::clamp<i64>(vocab_size - first_row, 0, logits.dim(1));
  if (logits.dtype() == DType::F64)
    return cross_entropy<double>(logits, targets, first_row, valid_columns, gradient_scale, tp);
  return cross_entropy<float>(logits, targets, first_row, valid_columns, gradient_scale, tp);
}

}  // namespace mcpp
