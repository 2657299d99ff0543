#include "optimizer/norm_scope.h"

namespace mcpp {

NormScope make_norm_scope(const ParallelState& parallel, bool has_sharded_grads) {
  NormScope scope;
  const auto add = [&](GridKind grid, Communicator* shard, Communicator* model) {
    if (has_sharded_grads) scope.groups[grid].push_back(shard);
    scope.groups[grid].push_back(model);
  };
  add(GridKind::Dense, parallel.dp_shard.get(), parallel.tp_pp.get());
  if (parallel.expert_tp_pp) add(GridKind::Expert, parallel.expert_dp_shard.get(), parallel.expert_tp_pp.get());
  scope.is_counted = [&parallel](const Param& param) { return parallel.is_primary_replica(param.placement); };
  return scope;
}

}  // namespace mcpp
