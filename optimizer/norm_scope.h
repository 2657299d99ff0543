// Whose gradients make up the global norm.
#pragma once
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "nn/param.h"

namespace mcpp {

/// Over which ranks the gradient is spread, for its global norm.
struct NormScope {
  std::vector<Communicator*> groups;  ///< sums of squares are added over each in turn; must outlive the optimizer
  /// Whether this rank adds this parameter: false on all ranks but one that hold the same gradient (a norm's weight on
  /// every tensor-parallel rank, a tied embedding on the last stage). Empty = every parameter.
  std::function<bool(const Param&)> counts;
};

/// The scope of a layout. `model`: the ranks that together hold one copy of the weights (tp x pp). `shard`: those over
/// which shard() cuts the gradients, null with ZeRO stage 0. Of the tensor-parallel ranks that hold the same box
/// (Param::tp_copies neighbours), the first counts it. `is_copy` tells parameters that an earlier pipeline stage holds
/// too, and counts; empty = none.
NormScope make_norm_scope(Communicator& model, Communicator* shard, int tp_rank,
                          std::function<bool(const Param&)> is_copy = {});

}  // namespace mcpp
