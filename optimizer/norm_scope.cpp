#include "optimizer/norm_scope.h"

namespace mcpp {

NormScope make_norm_scope(const ParallelState& parallel, bool gradients_are_cut) {
  NormScope scope{.groups = {parallel.model.get()}, .counts = {}};
  if (gradients_are_cut) scope.groups.insert(scope.groups.begin(), parallel.dp_shard.get());
  scope.counts = [&parallel](const Param& param) { return parallel.stands_for_holders(param.placement); };
  return scope;
}

}  // namespace mcpp
