// Scope of the global gradient norm.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "nn/param.h"
#include "parallel/state.h"

namespace mcpp {

/// Ranks and parameters over which the global gradient norm is computed.
struct NormScope {
  /// Groups over which the squared sums of a grid's parameters are all-reduced, one group after another. Every rank
  /// takes part, even without such parameters. Grids that are not listed have no parameters on any rank.
  std::map<GridKind, std::vector<Communicator*>> groups;
  /// Returns true if this rank counts the parameter: exactly one of the ranks with the same gradient does. Empty =
  /// every parameter is counted.
  std::function<bool(const Param&)> is_counted;
};

/// Returns the scope of a layout: sums over the ranks of a grid that together hold one copy of the weights and, if ZeRO
/// shards the gradients (stages 1, 2 and 3), over its shard group. Placements determine which rank counts a parameter.
NormScope make_norm_scope(const ParallelState& parallel, bool has_sharded_grads);

}  // namespace mcpp
