#include "parallel/dp/replicated.h"

#include <algorithm>

#include "tensor/ops.h"

namespace mcpp {

ReplicatedBuffer::ReplicatedBuffer(std::span<const UnitParam> params, DType dtype, Device& device, Communicator& dp,
                                   i64 bucket_elements)
    : ParamAndGradBuffer(params, dtype, device, dp.size(), bucket_elements),
      dp_(dp),
      flat_params_(Tensor::zeros({plan().total}, dtype, device, MemoryClass::Params)),
      flat_grads_(Tensor::zeros({plan().total}, grad_dtype(), device, MemoryClass::Grads)) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    Param& param = *params[i].param;
    param.value = flat_params_.flat(plan().offsets[i], param.numel()).view(param.box.shape);
    param.main_grad = flat_grads_.flat(plan().offsets[i], param.numel()).view(param.box.shape);
  }
  clear_grads();
}

// Nothing to fetch: weights and gradients are always whole here.
void ReplicatedBuffer::acquire(int, Use) {}

void ReplicatedBuffer::release(int unit, Use use, bool last) {
  if (use != Use::Backward || !last) return;
  const auto bucket =
      std::ranges::find_if(plan().buckets, [&](const Bucket& b) { return b.first_unit <= unit && unit < b.end_unit; });
  if (bucket == plan().buckets.end()) return;  // a unit without parameters
  const auto index = static_cast<std::size_t>(bucket - plan().buckets.begin());
  Reduction& reduction = reductions_[index];
  MCPP_CHECK(!reduction.is_started, "unit ", unit, " was released after its gradients had been reduced");
  reduction.pending.erase(unit);
  if (reduction.pending.empty()) start_reduction(index);
}

void ReplicatedBuffer::start_reduction(std::size_t index) {
  const Bucket& bucket = plan().buckets[index];
  Reduction& reduction = reductions_[index];
  reduction.is_started = true;
  // A parameter that nothing used in this step still holds the gradient of an earlier one.
  for (std::size_t i = bucket.first_param; i < bucket.end_param; ++i) {
    Param& param = *params()[i];
    if (!param.has_grad()) {
      ops::fill_zero(param.main_grad);
      param.take_beta();
    }
  }
  if (dp_.size() == 1) return;
  Tensor grads = flat_grads_.flat(bucket.begin, bucket.size());
  reduction.work = dp_.all_reduce(grads, ReduceOp::Sum);
}

void ReplicatedBuffer::finish() {
  // The last bucket first, as backward completes them: every rank must start them in the same order.
  for (std::size_t i = reductions_.size(); i-- > 0;) {
    if (!reductions_[i].is_started) start_reduction(i);
  }
  for (Reduction& reduction : reductions_) reduction.work.wait();
}

std::vector<ShardSegment> ReplicatedBuffer::shard() const {
  return {{.begin = 0, .params = flat_params_, .grads = flat_grads_}};
}

void ReplicatedBuffer::begin_step() {
  reductions_.clear();
  for (const Bucket& bucket : plan().buckets) {
    Reduction& reduction = reductions_.emplace_back();
    for (std::size_t i = bucket.first_param; i < bucket.end_param; ++i) reduction.pending.insert(plan().params[i].unit);
  }
}

}  // namespace mcpp
