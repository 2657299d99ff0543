#include "optimizer/norm_scope.h"

namespace mcpp {

NormScope make_norm_scope(const ParallelState& parallel, bool gradients_are_cut) {
  NormScope scope;
  const auto add = [&](GridKind grid, Communicator* shard, Communicator* model) {
    if (gradients_are_cut) scope.groups[grid].push_back(shard);
    scope.groups[grid].push_back(model);
  };
  add(GridKind::Dense, parallel.dp_shard.get(), parallel.model.get());
  if (parallel.expert_model) add(GridKind::Expert, parallel.expert_dp_shard.get(), parallel.expert_model.get());
  scope.counts = [&parallel](const Param& param) { return parallel.stands_for_holders(param.placement); };
  return scope;
}

}  // namespace mcpp
