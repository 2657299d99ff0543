#include "parallel/dp/sharded_grads.h"

#include <utility>

#include "tensor/ops/ops.h"

namespace mcpp {

ShardedGrads::ShardedGrads(const StoreContext& context, DType dtype, DType kept, bool overlap)
    : context_(context),
      dtype_(dtype),
      overlap_(overlap),
      shards_(Tensor::zeros({context.plan.total / context.parts}, kept, context.device, MemoryClass::Grads)),
      full_(context.plan.buckets.size()),
      has_grads_(full_.size()),
      replicas_(full_.size()) {}

void ShardedGrads::begin_step() {
  collect();
  has_grads_.assign(full_.size(), false);
  for (std::optional<Work>& sum : replicas_) sum.reset();
}

void ShardedGrads::acquire(std::size_t bucket) {
  const Bucket& b = context_.plan.buckets[bucket];
  full_[bucket] = Tensor::empty({b.size()}, dtype_, context_.device, MemoryClass::Grads);
  context_.zero_padding(bucket, full_[bucket]);
  context_.make_views(bucket, full_[bucket], &Param::main_grad);
  for (std::size_t i = b.first_param; i < b.end_param; ++i) context_.params[i]->clear_grad();
}

void ShardedGrads::release(std::size_t bucket, int unit, bool last) {
  MCPP_CHECK(!replicas_[bucket], "unit ", unit, " was released after its gradients had been reduced");
  collect();
  context_.zero_missing_grads(bucket);
  context_.drop_views(bucket, &Param::main_grad);
  reduce(bucket, std::exchange(full_[bucket], Tensor()), last);
  if (!overlap_) collect();
}

Tensor ShardedGrads::rounded(const Tensor& grads) const {
  if (grads.dtype() == shards_.dtype()) return grads;
  Tensor rounded_grads = Tensor::empty(grads.shape(), shards_.dtype(), context_.device, MemoryClass::Grads);
  ops::copy(grads, rounded_grads);
  return rounded_grads;
}

void ShardedGrads::reduce(std::size_t bucket, const Tensor& full, bool is_last) {
  const bool is_packed = context_.grad_reduce_format != GradReduceFormat::Full;
  const Tensor sent = is_packed ? full : rounded(full);
  // The gradients were encoded and are not needed any more, which frees their memory for the next unit.
  Tensor part = is_packed ? Tensor::empty({full.numel() / context_.parts}, dtype_, context_.device, MemoryClass::Grads)
                          : context_.own_part(sent);
  Work work = context_.reduce_scatter(sent, part);
  reduction_ = std::make_unique<Reduction>(Reduction{bucket, part, is_last, std::move(work)});
}

void ShardedGrads::collect() {
  if (!reduction_) return;
  reduction_->work.wait();
  const std::size_t bucket = reduction_->bucket;
  const Tensor part = rounded(reduction_->part);
  Tensor sum = shard(bucket);
  has_grads_[bucket] ? ops::add_to(part, sum) : ops::copy(part, sum);
  has_grads_[bucket] = true;
  const bool is_last = reduction_->is_last;
  reduction_.reset();
  if (is_last && overlap_) sum_over_replicas(bucket);
}

void ShardedGrads::sum_over_replicas(std::size_t bucket) {
  if (context_.groups.replicate.size() == 1 || replicas_[bucket]) return;
  Tensor part = shard(bucket);
  replicas_[bucket] = context_.groups.replicate.all_reduce(part, ReduceOp::Sum);
}

void ShardedGrads::finish() {
  collect();
  for (std::size_t b = 0; b < has_grads_.size(); ++b) {
    Tensor part = shard(b);
    if (!has_grads_[b]) ops::fill_zero(part);
  }
  // In backward order: every rank must start them in the same order.
  for (std::size_t b = has_grads_.size(); b-- > 0;) sum_over_replicas(b);
  for (std::optional<Work>& sum : replicas_) {
    if (sum) sum->wait();
  }
}

}  // namespace mcpp
