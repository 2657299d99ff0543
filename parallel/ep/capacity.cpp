#include "parallel/ep/capacity.h"

#include <cmath>

#include "tensor/ops/ops.h"
#include "tensor/ops/routing_tables.h"

namespace mcpp {
namespace {

/// Gathers the values of all ranks of the microbatch.
Tensor gather_all(const Tensor& local, Communicator* sample) {
  if (!sample || sample->size() == 1) return local;
  Tensor all = Tensor::like(local, {sample->size() * local.numel()});
  sample->all_gather(local, all).wait();
  return all;
}

/// Returns the weights in fp32, which suffices for comparisons; zeros if weights do not matter.
Tensor comparable_weights(const CapacityRule& rule) {
  Tensor weights = Tensor::zeros({rule.experts.numel()}, DType::F32, rule.experts.device());
  if (rule.weights.defined()) ops::copy(rule.weights, weights);
  return weights;
}

}  // namespace

i64 expert_capacity(i64 choices, i64 num_experts, double factor) {
  const double share = std::ceil(static_cast<double>(choices) / static_cast<double>(num_experts) * factor);
  return share < static_cast<double>(choices) ? static_cast<i64>(share) : choices;
}

i64 max_microbatches(i64 exchange, i64 sample) {
  if (sample % exchange == 0) return 1;
  return exchange % sample == 0 ? exchange / sample : exchange / sample + 2;  // a partial one at either end
}

Tensor drop_overflow(const CapacityRule& rule, Communicator* sample) {
  const i64 local_rows = rule.experts.dim(0), topk = rule.experts.dim(1);
  const Tensor all = gather_all(rule.experts, sample).view({-1, topk}),
               weights = gather_all(comparable_weights(rule), sample), order = gather_all(rule.order, sample);
  const i64 first = all.dim(0) > local_rows ? local_rows * sample->rank() : 0;
  Tensor kept = Tensor::like(rule.experts);
  ops::drop_overflow(all, weights, order, {.num_experts = rule.num_experts, .max_choices = rule.capacity}, first, kept);
  return kept;
}

}  // namespace mcpp
