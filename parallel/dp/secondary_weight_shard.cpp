#include "parallel/dp/secondary_weight_shard.h"

#include "tensor/ops/ops.h"

namespace mcpp {

SecondaryWeightShard::SecondaryWeightShard(const BufferPlan& plan, Communicator& node, const WeightCodec& codec,
                                           Device& device)
    : plan_(plan), node_(node), codec_(codec), has_(plan.buckets.size()) {
  MCPP_CHECK(plan.dp % node.size() == 0, plan.dp, " ranks in nodes of ", node.size());
  i64 end = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    begins_.push_back(end);
    end += numel(b);
  }
  parts_ = Tensor::zeros({end}, codec.dtype(), device, MemoryClass::Params);
}

void SecondaryWeightShard::forget() {
  has_.assign(has_.size(), false);
}

void SecondaryWeightShard::keep(std::size_t bucket, const Tensor& message) {
  Tensor to = part(bucket);
  ops::copy(message.flat(node_.rank() * to.numel(), to.numel()), to);
  has_[bucket] = true;
}

Work SecondaryWeightShard::gather(std::size_t bucket, Tensor& message) const {
  return node_.all_gather(part(bucket), message);
}

i64 SecondaryWeightShard::numel(std::size_t bucket) const {
  return codec_.numel(plan_.buckets[bucket].size() / node_.size());
}

}  // namespace mcpp
