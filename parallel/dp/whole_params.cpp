#include "parallel/dp/whole_params.h"

#include <utility>

namespace mcpp {

WholeParams::WholeParams(const StoreContext& context, const Wire& wire, DType dtype, bool overlap)
    : context_(context),
      wire_(wire),
      overlap_(overlap),
      flat_(Tensor::zeros({context.plan.total}, dtype, context.device, MemoryClass::Params)),
      gathers_(context.plan.buckets.size()) {
  if (wire_.is_packed())
    shards_ = Tensor::zeros({context.plan.total / context.parts}, dtype, context.device, MemoryClass::Params);
  for (std::size_t b = 0; b < gathers_.size(); ++b) context_.make_views(b, whole(b), &Param::value);
}

void WholeParams::fetch(std::size_t bucket, Use, bool) {
  finish(bucket);
}

void WholeParams::publish() {
  finish_gathers();
  if (context_.parts == 1 && !wire_.is_packed()) return;
  // First bucket first, because the next forward pass needs it first.
  for (std::size_t b = 0; b < gathers_.size(); ++b) {
    Gather& gather = gathers_[b];
    gather.message = wire_.is_packed() ? wire_.message(whole(b).numel(), context_.device) : whole(b);
    gather.work = context_.groups.shard.all_gather(wire_.written(shard(b)), gather.message);
  }
  if (!overlap_) finish_gathers();
}

void WholeParams::finish_gathers() {
  for (std::size_t b = 0; b < gathers_.size(); ++b) finish(b);
}

void WholeParams::finish(std::size_t bucket) {
  Gather& gather = gathers_[bucket];
  if (!gather.message.defined()) return;
  gather.work.wait();
  const Tensor message = std::exchange(gather.message, Tensor());
  Tensor full = whole(bucket);
  wire_.read_into(message, full);
}

Tensor WholeParams::shard(std::size_t bucket) const {
  return wire_.is_packed() ? context_.shard_of(shards_, bucket) : context_.own_part(whole(bucket));
}

Tensor WholeParams::whole(std::size_t bucket) const {
  return flat_.flat(context_.plan.buckets[bucket].begin, context_.plan.buckets[bucket].size());
}

}  // namespace mcpp
