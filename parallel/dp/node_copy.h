// A second copy of the weights inside each node (hpZ of ZeRO++, Wang et al. 2023, section 3.2): once a unit's weights
// came from all ranks that share them, the ranks of a node keep them among themselves, and the next uses of the step
// ask nobody beyond the node.
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "parallel/dp/buckets/plan.h"
#include "parallel/dp/wire.h"

namespace mcpp {

class NodeCopy {
 public:
  /// `node`: the ranks that keep a copy together; the plan's buckets divide by their number. Both outlive this.
  NodeCopy(const BufferPlan& plan, Communicator& node, const Wire& wire, Device& device);

  /// The weights were changed: there is no copy of them.
  void forget();
  bool has(std::size_t bucket) const { return has_[bucket]; }
  /// Keeps this rank's part of the message of a whole bucket.
  void keep(std::size_t bucket, const Tensor& message);
  /// Starts to bring the message of a bucket together that was kept.
  Work gather(std::size_t bucket, Tensor& message) const;

 private:
  /// Elements of the part of a message.
  i64 numel(std::size_t bucket) const;
  Tensor part(std::size_t bucket) const { return parts_.flat(begins_[bucket], numel(bucket)); }

  const BufferPlan& plan_;
  Communicator& node_;
  Wire wire_;
  std::vector<i64> begins_;  // of buckets, in parts_
  Tensor parts_;
  std::vector<bool> has_;  // by bucket
};

}  // namespace mcpp
