// Whose gradients make up the global norm.
#pragma once
#include <functional>
#include <map>
#include <vector>

#include "nn/param.h"
#include "parallel/state.h"

namespace mcpp {

/// Over which ranks the gradient is spread, for its global norm.
struct NormScope {
  /// Sums of squares of the parameters on a grid are added over each of its groups in turn, on every rank whether or
  /// not it has such parameters; a grid that is not named has none anywhere. They must outlive the optimizer.
  std::map<GridKind, std::vector<Communicator*>> groups;
  /// Whether this rank adds this parameter: false on all ranks but one that hold the same gradient. Empty = every
  /// parameter.
  std::function<bool(const Param&)> counts;
};

/// The scope of a layout, which must outlive it: sums over the ranks of a grid that together hold one copy of the
/// weights and, when ZeRO cuts the gradients (stages 1, 2 and 3), over those that it cuts over; who counts follows from
/// placements.
NormScope make_norm_scope(const ParallelState& parallel, bool gradients_are_cut);

}  // namespace mcpp
