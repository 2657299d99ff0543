// Gradients of parameters that several tensor-parallel ranks hold, and of which each computed only a part.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "parallel/dp/buffer.h"

namespace mcpp {

/// Sums the gradients marked Param::grad_is_partial over the ranks with a copy: those of norms and learned positions
/// under sequence parallelism (Korthikanti et al. 2022), those of keys and values that ranks share. They are small and
/// many, so that all with the same number of copies are summed as one tensor, once a step.
class PartialGradients {
 public:
  /// The buffers of all chunks of this rank, and its tensor-parallel group: both outlive this. Called by all of `tp`,
  /// whose ranks have the same parameters in the same order.
  PartialGradients(std::span<ParamAndGradBuffer* const> buffers, Communicator& tp);

  /// After ParamAndGradBuffer::finish() of all buffers: completes the gradients in their shards.
  void reduce();

 private:
  void reduce(int copies, Communicator& group);

  std::vector<ParamAndGradBuffer*> buffers_;
  std::map<int, std::unique_ptr<Communicator>> parts_;  // by copies: neighbours in the group
  std::map<int, Communicator*> groups_;
};

}  // namespace mcpp
