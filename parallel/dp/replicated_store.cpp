#include "parallel/dp/replicated_store.h"

#include <utility>

namespace mcpp {

ReplicatedParams::ReplicatedParams(const StoreContext& context, const WeightCodec& codec, DType dtype, bool overlaps)
    : context_(context),
      codec_(codec),
      overlaps_(overlaps),
      flat_(Tensor::zeros({context.plan.total}, dtype, context.device, MemoryClass::Params)),
      gathers_(context.plan.buckets.size()) {
  if (codec_.is_packed())
    shards_ = Tensor::zeros({context.plan.total / context.parts}, dtype, context.device, MemoryClass::Params);
  for (std::size_t b = 0; b < gathers_.size(); ++b) context_.make_views(b, bucket_view(b), &Param::value);
}

void ReplicatedParams::fetch(std::size_t bucket, Use, bool) {
  finish(bucket);
}

void ReplicatedParams::publish() {
  finish_gathers();
  if (context_.parts == 1 && !codec_.is_packed()) return;
  codec_.update_scales([this](std::size_t bucket) { return shard(bucket); });
  // First bucket first, because the next forward pass needs it first.
  for (std::size_t b = 0; b < gathers_.size(); ++b) {
    Gather& gather = gathers_[b];
    gather.message = codec_.is_packed() ? codec_.make_message(b) : bucket_view(b);
    gather.work = context_.groups.shard.all_gather(codec_.encode(b, shard(b)), gather.message);
  }
  if (!overlaps_) finish_gathers();
}

void ReplicatedParams::finish_gathers() {
  for (std::size_t b = 0; b < gathers_.size(); ++b) finish(b);
}

void ReplicatedParams::finish(std::size_t bucket) {
  Gather& gather = gathers_[bucket];
  if (!gather.message.defined()) return;
  gather.work.wait();
  const Tensor message = std::exchange(gather.message, Tensor());
  Tensor full = bucket_view(bucket);
  codec_.decode_into(bucket, message, full);
}

Tensor ReplicatedParams::shard(std::size_t bucket) const {
  return codec_.is_packed() ? context_.shard_of(shards_, bucket) : context_.own_part(bucket_view(bucket));
}

Tensor ReplicatedParams::bucket_view(std::size_t bucket) const {
  return flat_.flat(context_.plan.buckets[bucket].begin, context_.plan.buckets[bucket].size());
}

ReplicatedGrads::ReplicatedGrads(const StoreContext& context, DType dtype, bool overlaps, i64 power_sgd_rank)
    : context_(context),
      overlaps_(overlaps),
      flat_(Tensor::zeros({context.plan.total}, dtype, context.device, MemoryClass::Grads)) {
  for (std::size_t b = 0; b < context_.plan.buckets.size(); ++b)
    context_.make_views(b, bucket_view(b), &Param::main_grad);
  if (power_sgd_rank > 0) power_sgd_ = std::make_unique<PowerSgd>(context_, dtype, power_sgd_rank);
}

void ReplicatedGrads::begin_step() {
  reductions_.clear();
  latest_.reset();
  for (const Bucket& bucket : context_.plan.buckets) {
    Reduction& reduction = reductions_.emplace_back();
    for (std::size_t i = bucket.first_param; i < bucket.end_param; ++i) {
      reduction.pending.insert(context_.plan.params[i].unit);
    }
  }
}

void ReplicatedGrads::release(std::size_t bucket, int unit, bool is_last) {
  if (!is_last) return;
  Reduction& reduction = reductions_[bucket];
  MCPP_CHECK(!reduction.is_started, "unit ", unit, " was released after its gradients had been reduced");
  reduction.pending.erase(unit);
  if (overlaps_ && reduction.pending.empty()) start_reduction(bucket);
}

void ReplicatedGrads::start_reduction(std::size_t bucket) {
  Reduction& reduction = reductions_[bucket];
  reduction.is_started = true;
  // A parameter not used in this step still holds the gradient of an earlier one.
  context_.zero_missing_grads(bucket);
  // A block with a non-finite gradient arrives as NaN, padding included. Zeroing the padding keeps the same block of
  // later steps finite.
  if (context_.grad_reduce_format == GradReduceFormat::Int8) context_.zero_padding(bucket, bucket_view(bucket));
  // Waits one bucket late, when the sum has been overlapped with backward of this bucket. Every rank does so at the
  // same bucket, regardless of which sums have completed.
  const std::optional<std::size_t> previous = std::exchange(latest_, bucket);
  if (has_replicas()) sum_over_replicas(previous);
  if (context_.groups.shard.size() == 1) return;
  // Bounds the memory of messages in flight: one bucket with factors, two with encoded gradients, of which one is sent
  // while the next is encoded.
  if (uses_power_sgd()) wait_for_reductions();
  if (context_.grad_reduce_format != GradReduceFormat::Full) wait_for_reductions(previous);
  reduction.work = sum(bucket);
}

Work ReplicatedGrads::sum(std::size_t bucket) {
  Tensor grads = bucket_view(bucket), part = shard(bucket);
  if (uses_power_sgd()) return power_sgd_->sum(bucket, grads);
  if (context_.parts == 1) return context_.groups.shard.all_reduce(grads, ReduceOp::Sum);
  return context_.reduce_scatter(grads, part);
}

void ReplicatedGrads::finish() {
  // Last bucket first, as backward completes them: every rank must start them in the same order.
  for (std::size_t b = reductions_.size(); b-- > 0;) {
    if (!reductions_[b].is_started) start_reduction(b);
  }
  if (has_replicas()) sum_over_replicas(std::exchange(latest_, std::nullopt));
  wait_for_reductions();
}

void ReplicatedGrads::wait_for_reductions(std::optional<std::size_t> except) {
  for (std::size_t b = reductions_.size(); b-- > 0;) {
    if (b != except) reductions_[b].work.wait();
  }
}

void ReplicatedGrads::sum_over_replicas(std::optional<std::size_t> bucket) {
  if (!bucket) return;
  Reduction& reduction = reductions_[*bucket];
  reduction.work.wait();
  Tensor part = shard(*bucket);
  reduction.work = context_.groups.replicate.all_reduce(part, ReduceOp::Sum);
}

void ReplicatedGrads::end_step(const Tensor& factor) {
  if (uses_power_sgd()) power_sgd_->end_step(factor);
}

std::span<const PowerSgdState> ReplicatedGrads::power_sgd_states() const {
  return power_sgd_ ? power_sgd_->states() : std::span<const PowerSgdState>();
}

Tensor ReplicatedGrads::bucket_view(std::size_t bucket) const {
  return flat_.flat(context_.plan.buckets[bucket].begin, context_.plan.buckets[bucket].size());
}

}  // namespace mcpp
