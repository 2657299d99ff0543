#include "parallel/dp/sharded_store.h"

#include <utility>

#include "nn/offload/host_memory.h"
#include "tensor/ops/ops.h"

namespace mcpp {

void OffloadedParams::prefetch(const std::vector<std::size_t>& buckets) {
  if (is_asynchronous() && !buckets.empty()) start(buckets.front());
  store_->prefetch(buckets);
}

void OffloadedParams::start(std::size_t bucket) {
  if (pending_copy_ && pending_copy_->bucket == bucket) return;
  finish_fetch();
  const Tensor stored = store_->fetch(bucket).front();
  const Tensor part = Tensor::empty(stored.shape(), stored.dtype(), device_, MemoryClass::Params);
  pending_copy_ = PendingCopy{bucket, part, copies_->to_device(stored, part)};
}

Tensor OffloadedParams::take(std::size_t bucket) {
  start(bucket);
  Tensor part = pending_copy_->part;
  finish_fetch();
  return part;
}

void OffloadedParams::copy_into(std::size_t bucket, Tensor& part) {
  copy_over(store_->fetch(bucket).front(), part);
  store_->release_clean(bucket);
}

/// Waits so that the host is one unit ahead of the device and neither waits for the other.
void OffloadedParams::finish_fetch() {
  if (!pending_copy_) return;
  pending_copy_->copy.wait();
  store_->release_clean(pending_copy_->bucket);
  pending_copy_.reset();
}

SecondaryWeightShard::SecondaryWeightShard(const BufferPlan& plan, Communicator& node, const WeightCodec& codec,
                                           Device& device)
    : plan_(plan), node_(node), codec_(codec), is_stored_(plan.buckets.size()) {
  MCPP_CHECK(plan.dp % node.size() == 0, plan.dp, " ranks in nodes of ", node.size());
  i64 end = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    offsets_.push_back(end);
    end += numel(b);
  }
  parts_ = Tensor::zeros({end}, codec.dtype(), device, MemoryClass::Params);
}

void SecondaryWeightShard::invalidate() {
  is_stored_.assign(is_stored_.size(), false);
}

void SecondaryWeightShard::store_part(std::size_t bucket, const Tensor& message) {
  Tensor to = part(bucket);
  ops::copy(message.flat(node_.rank() * to.numel(), to.numel()), to);
  is_stored_[bucket] = true;
}

Work SecondaryWeightShard::gather(std::size_t bucket, Tensor& message) const {
  return node_.all_gather(part(bucket), message);
}

i64 SecondaryWeightShard::numel(std::size_t bucket) const {
  return codec_.part_numel(bucket) * (plan_.dp / node_.size());
}

ShardedParams::ShardedParams(const StoreContext& context, const WeightCodec& codec, DType dtype, bool should_prefetch,
                             std::unique_ptr<OffloadedParams> offload_store)
    : context_(context),
      codec_(codec),
      dtype_(dtype),
      should_prefetch_(should_prefetch),
      offloaded_params_(std::move(offload_store)),
      gathered_(context.plan.buckets.size()) {
  if (Communicator* node = context_.groups.intra_node)
    secondary_shard_ = std::make_unique<SecondaryWeightShard>(context_.plan, *node, codec_, context_.device);
  if (!offloaded_params_) {
    shards_ = Tensor::zeros({context.plan.total / context.parts}, dtype, context.device, MemoryClass::Params);
    return;
  }
  for (const Bucket& bucket : context.plan.buckets)
    offloaded_params_->store().add({{dtype, bucket.size() / context.parts}});
  offloaded_params_->store().reserve();
}

void ShardedParams::fetch(std::size_t bucket, Use use, bool is_nested) {
  if (prefetched_ == bucket) prefetched_.reset();
  if (!is_nested) discard_prefetched();  // the loop did not use the prefetched unit
  start_gather(bucket);
  // Starts before waiting, to overlap with this unit's computation. Below 0 the index wraps around and is no bucket.
  const std::size_t next = use == Use::Forward ? bucket + 1 : bucket - 1;
  if (should_prefetch_ && !is_nested) start_prefetch(next);
  if (offloaded_params_ && !is_nested) prefetch_after(should_prefetch_ ? next : bucket, use);
  Gathered& gathered = *gathered_[bucket];
  gathered.work.wait();
  if (secondary_shard_ && !secondary_shard_->contains(bucket)) secondary_shard_->store_part(bucket, gathered.message);
  gathered.full = codec_.decode(bucket, gathered.message);
  gathered.message = Tensor();
  context_.make_views(bucket, gathered.full, &Param::value);
}

void ShardedParams::prefetch_after(std::size_t bucket, Use use) {
  std::vector<std::size_t> next;
  for (int i = 0; i < 2; ++i) {
    use == Use::Forward ? ++bucket : --bucket;
    if (bucket < gathered_.size() && !has_secondary_shard(bucket)) next.push_back(bucket);
  }
  offloaded_params_->prefetch(next);
}

void ShardedParams::drop(std::size_t bucket) {
  context_.drop_views(bucket, &Param::value);
  gathered_[bucket].reset();
}

void ShardedParams::publish() {
  discard_prefetched();
  if (secondary_shard_) secondary_shard_->invalidate();
  codec_.update_scales([this](std::size_t bucket) { return own_part(bucket, {}); });
  if (offloaded_params_ && !gathered_.empty()) offloaded_params_->prefetch({0});
}

void ShardedParams::start_gather(std::size_t bucket) {
  if (gathered_[bucket]) return;
  Gathered& gathered = gathered_[bucket].emplace();
  gathered.message = codec_.make_message(bucket);
  gathered.work = has_secondary_shard(bucket)
                      ? secondary_shard_->gather(bucket, gathered.message)
                      : context_.groups.shard.all_gather(codec_.encode(bucket, own_part(bucket, gathered.message)),
                                                         gathered.message);
}

Tensor ShardedParams::own_part(std::size_t bucket, const Tensor& message) const {
  if (!offloaded_params_) return shard(bucket);
  if (offloaded_params_->is_asynchronous()) return offloaded_params_->take(bucket);
  const i64 count = size(bucket) / context_.parts;
  Tensor part = codec_.is_packed() ? Tensor::empty({count}, dtype_, context_.device, MemoryClass::Params)
                                   : context_.own_part(message);
  offloaded_params_->copy_into(bucket, part);
  return part;
}

void ShardedParams::start_prefetch(std::size_t bucket) {
  if (bucket >= gathered_.size() || gathered_[bucket]) return;
  start_gather(bucket);
  prefetched_ = bucket;
}

void ShardedParams::discard_prefetched() {
  finish_gathers();
  if (prefetched_) gathered_[*prefetched_].reset();
  prefetched_.reset();
}

void ShardedParams::finish_gathers() {
  if (prefetched_) gathered_[*prefetched_]->work.wait();
  if (offloaded_params_) offloaded_params_->finish_fetch();
}

ShardedGrads::ShardedGrads(const StoreContext& context, DType dtype, DType shard_dtype, bool overlaps)
    : context_(context),
      dtype_(dtype),
      overlaps_(overlaps),
      shards_(Tensor::zeros({context.plan.total / context.parts}, shard_dtype, context.device, MemoryClass::Grads)),
      full_(context.plan.buckets.size()),
      has_grads_(full_.size()),
      replica_sums_(full_.size()) {}

void ShardedGrads::begin_step() {
  finish_reduction();
  has_grads_.assign(full_.size(), false);
  for (std::optional<Work>& sum : replica_sums_) sum.reset();
}

void ShardedGrads::acquire(std::size_t bucket) {
  const Bucket& b = context_.plan.buckets[bucket];
  full_[bucket] = Tensor::empty({b.size()}, dtype_, context_.device, MemoryClass::Grads);
  context_.zero_padding(bucket, full_[bucket]);
  context_.make_views(bucket, full_[bucket], &Param::main_grad);
  for (std::size_t i = b.first_param; i < b.end_param; ++i) context_.params[i]->clear_grad();
}

void ShardedGrads::release(std::size_t bucket, int unit, bool is_last) {
  MCPP_CHECK(!replica_sums_[bucket], "unit ", unit, " was released after its gradients had been reduced");
  finish_reduction();
  context_.zero_missing_grads(bucket);
  context_.drop_views(bucket, &Param::main_grad);
  reduce(bucket, std::exchange(full_[bucket], Tensor()), is_last);
  if (!overlaps_) finish_reduction();
}

Tensor ShardedGrads::to_shard_dtype(const Tensor& grads) const {
  if (grads.dtype() == shards_.dtype()) return grads;
  Tensor rounded_grads = Tensor::empty(grads.shape(), shards_.dtype(), context_.device, MemoryClass::Grads);
  ops::copy(grads, rounded_grads);
  return rounded_grads;
}

void ShardedGrads::reduce(std::size_t bucket, const Tensor& full, bool is_last) {
  const bool is_packed = context_.grad_reduce_format != GradReduceFormat::Full;
  const Tensor message = is_packed ? full : to_shard_dtype(full);
  // The gradients were encoded and are no longer needed, which frees their memory for the next unit.
  Tensor part = is_packed ? Tensor::empty({full.numel() / context_.parts}, dtype_, context_.device, MemoryClass::Grads)
                          : context_.own_part(message);
  Work work = context_.reduce_scatter(message, part);
  reduction_ = std::make_unique<Reduction>(Reduction{bucket, part, is_last, std::move(work)});
}

void ShardedGrads::finish_reduction() {
  if (!reduction_) return;
  reduction_->work.wait();
  const std::size_t bucket = reduction_->bucket;
  const Tensor part = to_shard_dtype(reduction_->part);
  Tensor sum = shard(bucket);
  has_grads_[bucket] ? ops::add_to(part, sum) : ops::copy(part, sum);
  has_grads_[bucket] = true;
  const bool is_last = reduction_->is_last;
  reduction_.reset();
  if (is_last && overlaps_) sum_over_replicas(bucket);
}

void ShardedGrads::sum_over_replicas(std::size_t bucket) {
  if (context_.groups.replicate.size() == 1 || replica_sums_[bucket]) return;
  Tensor part = shard(bucket);
  replica_sums_[bucket] = context_.groups.replicate.all_reduce(part, ReduceOp::Sum);
}

void ShardedGrads::finish() {
  finish_reduction();
  for (std::size_t b = 0; b < has_grads_.size(); ++b) {
    Tensor part = shard(b);
    if (!has_grads_[b]) ops::fill_zero(part);
  }
  // In backward order: every rank must start them in the same order.
  for (std::size_t b = has_grads_.size(); b-- > 0;) sum_over_replicas(b);
  for (std::optional<Work>& sum : replica_sums_) {
    if (sum) sum->wait();
  }
}

}  // namespace mcpp
