// Secondary weight shards within a node (hpZ of ZeRO++, Wang et al. 2023, section 3.2): once a unit's weights were
// gathered from all ranks, the ranks of a node keep them sharded among themselves, and later uses in the step gather
// within the node.
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "parallel/dp/buckets/plan.h"
#include "parallel/dp/weight_codec.h"

namespace mcpp {

class SecondaryWeightShard {
 public:
  /// `node` is the group of ranks that keep a copy together; its size must divide the plan's buckets.
  SecondaryWeightShard(const BufferPlan& plan, Communicator& node, const WeightCodec& codec, Device& device);

  /// Invalidates the copy after a weight update.
  void forget();
  bool has(std::size_t bucket) const { return has_[bucket]; }
  /// Keeps this rank's part of the message of a whole bucket.
  void keep(std::size_t bucket, const Tensor& message);
  /// Starts gathering the kept message of a bucket.
  Work gather(std::size_t bucket, Tensor& message) const;

 private:
  /// Returns the elements of this rank's part of a bucket's message.
  i64 numel(std::size_t bucket) const;
  Tensor part(std::size_t bucket) const { return parts_.flat(begins_[bucket], numel(bucket)); }

  const BufferPlan& plan_;
  Communicator& node_;
  WeightCodec codec_;
  std::vector<i64> begins_;  // offsets of buckets in parts_
  Tensor parts_;
  std::vector<bool> has_;  // by bucket
};

}  // namespace mcpp
