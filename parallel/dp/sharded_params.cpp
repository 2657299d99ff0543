#include "parallel/dp/sharded_params.h"

#include <utility>

namespace mcpp {

ShardedParams::ShardedParams(const StoreContext& context, const WeightCodec& codec, DType dtype, bool prefetch,
                             std::unique_ptr<OffloadedParams> offload_store)
    : context_(context),
      codec_(codec),
      dtype_(dtype),
      prefetch_(prefetch),
      offloaded_params_(std::move(offload_store)),
      gathered_(context.plan.buckets.size()) {
  if (Communicator* node = context_.groups.node)
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
  if (!is_nested) forget_prefetched();  // the loop did not use the prefetched unit
  start_gather(bucket);
  // Starts before waiting, to overlap with this unit's computation. Below 0 the index wraps around and is no bucket.
  const std::size_t next = use == Use::Forward ? bucket + 1 : bucket - 1;
  if (prefetch_ && !is_nested) start_prefetch(next);
  if (offloaded_params_ && !is_nested) prefetch_after(prefetch_ ? next : bucket, use);
  Gathered& gathered = *gathered_[bucket];
  gathered.work.wait();
  if (secondary_shard_ && !secondary_shard_->has(bucket)) secondary_shard_->keep(bucket, gathered.message);
  gathered.full = codec_.read(gathered.message, size(bucket));
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
  forget_prefetched();
  if (secondary_shard_) secondary_shard_->forget();
  if (offloaded_params_ && !gathered_.empty()) offloaded_params_->prefetch({0});
}

void ShardedParams::start_gather(std::size_t bucket) {
  if (gathered_[bucket]) return;
  Gathered& gathered = gathered_[bucket].emplace();
  gathered.message = codec_.message(size(bucket), context_.device);
  gathered.work =
      has_secondary_shard(bucket)
          ? secondary_shard_->gather(bucket, gathered.message)
          : context_.groups.shard.all_gather(codec_.encode(own_part(bucket, gathered.message)), gathered.message);
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

void ShardedParams::forget_prefetched() {
  finish_gathers();
  if (prefetched_) gathered_[*prefetched_].reset();
  prefetched_.reset();
}

void ShardedParams::finish_gathers() {
  if (prefetched_) gathered_[*prefetched_]->work.wait();
  if (offloaded_params_) offloaded_params_->finish_fetch();
}

}  // namespace mcpp
