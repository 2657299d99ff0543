#include "parallel/dp/replicated_params.h"

#include <utility>

namespace mcpp {

ReplicatedParams::ReplicatedParams(const StoreContext& context, const WeightCodec& codec, DType dtype, bool overlap)
    : context_(context),
      codec_(codec),
      overlap_(overlap),
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
  // First bucket first, because the next forward pass needs it first.
  for (std::size_t b = 0; b < gathers_.size(); ++b) {
    Gather& gather = gathers_[b];
    gather.message = codec_.is_packed() ? codec_.message(bucket_view(b).numel(), context_.device) : bucket_view(b);
    gather.work = context_.groups.shard.all_gather(codec_.encode(shard(b)), gather.message);
  }
  if (!overlap_) finish_gathers();
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
  codec_.decode_into(message, full);
}

Tensor ReplicatedParams::shard(std::size_t bucket) const {
  return codec_.is_packed() ? context_.shard_of(shards_, bucket) : context_.own_part(bucket_view(bucket));
}

Tensor ReplicatedParams::bucket_view(std::size_t bucket) const {
  return flat_.flat(context_.plan.buckets[bucket].begin, context_.plan.buckets[bucket].size());
}

}  // namespace mcpp
