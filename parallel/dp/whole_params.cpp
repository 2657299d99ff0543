#include "parallel/dp/whole_params.h"

namespace mcpp {

WholeParams::WholeParams(const StoreContext& context, DType dtype, bool overlap)
    : context_(context),
      overlap_(overlap),
      flat_(Tensor::zeros({context.plan.total}, dtype, context.device, MemoryClass::Params)),
      gathers_(context.plan.buckets.size()) {
  for (std::size_t b = 0; b < gathers_.size(); ++b) context_.make_views(b, whole(b), &Param::value);
}

void WholeParams::fetch(std::size_t bucket, Use, bool) {
  gathers_[bucket].wait();
}

void WholeParams::publish() {
  settle();
  if (context_.parts == 1) return;
  // The first bucket first: the next forward pass waits for it before the others.
  for (std::size_t b = 0; b < gathers_.size(); ++b) {
    Tensor full = whole(b);
    gathers_[b] = context_.groups.shard.all_gather(shard(b), full);
  }
  if (!overlap_) settle();
}

void WholeParams::settle() {
  for (Work& gather : gathers_) gather.wait();
}

Tensor WholeParams::whole(std::size_t bucket) const {
  return flat_.flat(context_.plan.buckets[bucket].begin, context_.plan.buckets[bucket].size());
}

}  // namespace mcpp
