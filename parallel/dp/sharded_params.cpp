#include "parallel/dp/sharded_params.h"

#include <utility>

namespace mcpp {

ShardedParams::ShardedParams(const StoreContext& context, const Wire& wire, DType dtype, bool prefetch,
                             std::unique_ptr<AwayParams> away)
    : context_(context),
      wire_(wire),
      dtype_(dtype),
      prefetch_(prefetch),
      away_(std::move(away)),
      gathered_(context.plan.buckets.size()) {
  if (Communicator* node = context_.groups.node)
    node_copy_ = std::make_unique<NodeCopy>(context_.plan, *node, wire_, context_.device);
  if (!away_) {
    shards_ = Tensor::zeros({context.plan.total / context.parts}, dtype, context.device, MemoryClass::Params);
    return;
  }
  for (const Bucket& bucket : context.plan.buckets) away_->store().add({{dtype, bucket.size() / context.parts}});
  away_->store().reserve();
}

void ShardedParams::fetch(std::size_t bucket, Use use, bool is_nested) {
  if (prefetched_ == bucket) prefetched_.reset();
  if (!is_nested) forget_prefetched();  // the loop did not use the prefetched unit
  start_gather(bucket);
  // Starts before waiting, to overlap with this unit's computation. Below 0 the index wraps around and is no bucket.
  const std::size_t next = use == Use::Forward ? bucket + 1 : bucket - 1;
  if (prefetch_ && !is_nested) start_prefetch(next);
  if (away_ && !is_nested) expect_after(prefetch_ ? next : bucket, use);
  Gathered& gathered = *gathered_[bucket];
  gathered.work.wait();
  if (node_copy_ && !node_copy_->has(bucket)) node_copy_->keep(bucket, gathered.message);
  gathered.full = wire_.read(gathered.message, size(bucket));
  gathered.message = Tensor();
  context_.make_views(bucket, gathered.full, &Param::value);
}

void ShardedParams::expect_after(std::size_t bucket, Use use) {
  std::vector<std::size_t> next;
  for (int i = 0; i < 2; ++i) {
    use == Use::Forward ? ++bucket : --bucket;
    if (bucket < gathered_.size() && !is_near(bucket)) next.push_back(bucket);
  }
  away_->expect(next);
}

void ShardedParams::drop(std::size_t bucket) {
  context_.drop_views(bucket, &Param::value);
  gathered_[bucket].reset();
}

void ShardedParams::publish() {
  forget_prefetched();
  if (node_copy_) node_copy_->forget();
  if (away_ && !gathered_.empty()) away_->expect({0});
}

void ShardedParams::start_gather(std::size_t bucket) {
  if (gathered_[bucket]) return;
  Gathered& gathered = gathered_[bucket].emplace();
  gathered.message = wire_.message(size(bucket), context_.device);
  gathered.work = is_near(bucket) ? node_copy_->gather(bucket, gathered.message)
                                  : context_.groups.shard.all_gather(wire_.written(own_part(bucket, gathered.message)),
                                                                     gathered.message);
}

Tensor ShardedParams::own_part(std::size_t bucket, const Tensor& message) const {
  if (!away_) return shard(bucket);
  if (away_->is_beside()) return away_->take(bucket);
  const i64 count = size(bucket) / context_.parts;
  Tensor part = wire_.is_packed() ? Tensor::empty({count}, dtype_, context_.device, MemoryClass::Params)
                                  : context_.own_part(message);
  away_->take_into(bucket, part);
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
  if (away_) away_->finish_fetch();
}

}  // namespace mcpp
