#include "parallel/dp/sharded_params.h"

namespace mcpp {

ShardedParams::ShardedParams(const StoreContext& context, DType dtype, bool prefetch)
    : context_(context),
      prefetch_(prefetch),
      shards_(Tensor::zeros({context.plan.total / context.parts}, dtype, context.device, MemoryClass::Params)),
      gathered_(context.plan.buckets.size()) {}

void ShardedParams::fetch(std::size_t bucket, Use use, bool is_nested) {
  if (prefetched_ == bucket) prefetched_.reset();
  if (!is_nested) forget_prefetched();  // the loop went another way
  start_gather(bucket);
  // Before waiting, so that it is on its way while this unit computes. Below 0 wraps round and is no bucket.
  if (prefetch_ && !is_nested) start_prefetch(use == Use::Forward ? bucket + 1 : bucket - 1);
  gathered_[bucket].work.wait();
  context_.make_views(bucket, gathered_[bucket].full, &Param::value);
}

void ShardedParams::drop(std::size_t bucket) {
  context_.drop_views(bucket, &Param::value);
  gathered_[bucket].full = Tensor();
}

void ShardedParams::start_gather(std::size_t bucket) {
  Gathered& gathered = gathered_[bucket];
  if (gathered.full.defined()) return;
  const Shape shape{context_.plan.buckets[bucket].size()};
  gathered.full = Tensor::empty(shape, shards_.dtype(), context_.device, MemoryClass::Params);
  gathered.work = context_.groups.shard.all_gather(shard(bucket), gathered.full);
}

void ShardedParams::start_prefetch(std::size_t bucket) {
  if (bucket >= gathered_.size() || gathered_[bucket].full.defined()) return;
  start_gather(bucket);
  prefetched_ = bucket;
}

void ShardedParams::forget_prefetched() {
  settle();
  if (prefetched_) gathered_[*prefetched_].full = Tensor();
  prefetched_.reset();
}

void ShardedParams::settle() {
  if (prefetched_) gathered_[*prefetched_].work.wait();
}

}  // namespace mcpp
