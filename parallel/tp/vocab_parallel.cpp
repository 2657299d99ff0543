#include "parallel/tp/vocab_parallel.h"

#include <algorithm>

#include "parallel/tp/mappings.h"
#include "tensor/dtype.h"
#include "tensor/ops/ops.h"
#include "tensor/ops/z_loss.h"
#include "tensor/transfer.h"

namespace mcpp {

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& name, i64 padded_vocab_size, i64 hidden_size,
                                               Communicator& tp, double init_std, bool sequence_parallel)
    : region_(tp, sequence_parallel),
      weight_(name + ".weight", split_box({padded_vocab_size, hidden_size}, 0, tp), Init::Normal, init_std) {}

Tensor VocabParallelEmbedding::forward(const Tensor& tokens, MicrobatchContext& context) {
  context.save(this, tokens);
  const Tensor& table = weight_.value;
  Tensor y = Tensor::empty({tokens.dim(0), tokens.dim(1), table.dim(1)}, table.dtype(), table.device());
  ops::embedding(tokens, table, weight_.box.offset[0], y);
  return region_.sum(y).wait();
}

Tensor VocabParallelEmbedding::backward(const Tensor& dy, MicrobatchContext& context) {
  const Tensor tokens = context.take(this);
  context.run_or_delay_wgrad([this, dy, tokens] {
    const Tensor full_dy = region_.gather_sequence(dy).wait();
    weight_.add_grad(
        [&](Tensor& sum, float beta) { ops::embedding_backward(full_dy, tokens, weight_.box.offset[0], sum, beta); });
  });
  return {};
}

ActivationPlacement VocabParallelEmbedding::output_placement(ActivationPlacement tokens) const {
  MCPP_CHECK(tokens == ActivationPlacement::Replicated, weight_.name,
             " expects all tokens, but receives activations that are ", name_of(tokens));
  return region_.outer_placement();
}

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
                                         const LossGradScale& grad_scale, Communicator& tp, double soft_cap,
                                         double z_loss_coeff) {
  const i64 valid_columns = std::clamp<i64>(vocab_size - first_row, 0, logits.dim(1));
  const auto vector = [&] { return Tensor::empty({logits.dim(0)}, accumulate_dtype(logits.dtype()), logits.device()); };
  Tensor largest = vector(), sum_exp = vector(), target_logit = vector();
  ops::cross_entropy_stats(logits, targets, first_row, valid_columns, largest, sum_exp, target_logit);
  if (tp.size() > 1) combine(largest, sum_exp, target_logit, tp);
  TokenLosses result{.per_token = vector(),
                     .totals = Tensor::empty({2}, DType::F64, logits.device(), MemoryClass::Workspace),
                     .z_loss = {}};
  ops::cross_entropy_losses(largest, sum_exp, target_logit, targets, result.per_token, result.totals);
  Tensor& lse = largest;
  if (z_loss_coeff != 0) {
    result.z_loss = Tensor::empty({1}, DType::F64, logits.device(), MemoryClass::Workspace);
    ops::z_loss(lse, targets, z_loss_coeff, result.z_loss);
  }
  if (grad_scale.value != 0)
    ops::cross_entropy_gradient(logits, targets, first_row, valid_columns, lse, grad_scale.value, soft_cap,
                                grad_scale.factor);
  return result;
}

}  // namespace mcpp
