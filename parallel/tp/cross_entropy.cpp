#include "parallel/tp/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "tensor/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Per token, what the whole vocabulary has, from every rank's part: the largest logit, the sum of exponentials and the
/// logit of the target.
template <class T>
void combine(Tensor& largest, Tensor& sum_exp, Tensor& target_logit, Communicator& tp) {
  Tensor own_largest = Tensor::like(largest);
  ops::copy(largest, own_largest);
  tp.all_reduce(largest, ReduceOp::Max).wait();
  {
    const HostValues<T> own(own_largest), all(largest);
    HostValues<T> sums(sum_exp);
    for (std::size_t t = 0; t < sums.size(); ++t) sums[t] *= std::exp(own[t] - all[t]);
    sums.write_back();
  }
  tp.all_reduce(sum_exp, ReduceOp::Sum).wait();
  tp.all_reduce(target_logit, ReduceOp::Sum).wait();
}

/// Turns the largest logits into the logs of the softmax's denominators.
template <class T>
HostValues<T> log_sum_exp(Tensor& largest, const Tensor& sum_exp) {
  HostValues<T> lse(largest);
  const HostValues<T> sums(sum_exp);
  for (std::size_t t = 0; t < lse.size(); ++t) lse[t] += std::log(sums[t]);
  lse.write_back();
  return lse;
}

template <class T>
TokenLosses losses(const HostValues<T>& lse, const Tensor& target_logit, const Tensor& targets) {
  TokenLosses result{.per_token = Tensor::like(target_logit)};
  const HostValues<T> target_logits(target_logit);
  const HostValues<i32> tokens(targets);
  std::vector<T> per_token(lse.size());
  for (std::size_t t = 0; t < lse.size(); ++t) {
    const bool has_target = tokens[t] >= 0;
    per_token[t] = has_target ? lse[t] - target_logits[t] : T{0};
    result.sum += static_cast<double>(per_token[t]);
    result.tokens += has_target;
  }
  write_values(per_token, result.per_token);
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
  // The losses first: a device then works on the gradient while the host goes on.
  const TokenLosses result = losses<T>(log_sum_exp<T>(lse, sum_exp), target_logit, targets);
  if (gradient_scale != 0) ops::cross_entropy_gradient(logits, targets, first_row, valid_columns, lse, gradient_scale);
  return result;
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
