#include "optimizer/param_group.h"

#include <algorithm>

namespace mcpp {

OptimizerKind rule_for(bool is_matrix, const OptimizerConfig& config) {
  return config.optimizer == OptimizerKind::Muon && !is_matrix ? OptimizerKind::Adam : config.optimizer;
}

ParamGroup group_of(const Param& param, const OptimizerConfig& config) {
  const bool has_decay = param.box.shape.size() > 1 && !param.name.ends_with(".bias");
  ParamGroup group{.rule = rule_for(!param.matrices.empty(), config),
                   .lr_mult = 1,
                   .wd_mult = has_decay ? 1.0 : 0.0,
                   .adam_beta1 = config.adam_beta1,
                   .adam_beta2 = config.adam_beta2,
                   .adam_eps = config.adam_eps};
  const ParamGroupConfig* own = config.find_param_group(param.name);
  if (!own) return group;
  group.lr_mult = own->lr_mult;
  if (own->wd_mult >= 0) group.wd_mult = own->wd_mult;
  if (own->adam_beta1 >= 0) group.adam_beta1 = own->adam_beta1;
  if (own->adam_beta2 >= 0) group.adam_beta2 = own->adam_beta2;
  if (own->adam_eps > 0) group.adam_eps = own->adam_eps;
  return group;
}

std::vector<GroupRun> group_runs(const BufferPlan& plan, std::span<const ParamGroup> groups, i64 begin, i64 end) {
  std::vector<GroupRun> runs;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const i64 next = i + 1 < plan.params.size() ? plan.offsets[i + 1] : plan.total;
    const i64 from = std::max(begin, plan.offsets[i]), to = std::min(end, next);
    if (from >= to) continue;
    if (!runs.empty() && runs.back().group == groups[i]) {
      runs.back().end = to;
    } else {
      runs.push_back({from, to, groups[i]});
    }
  }
  return runs;
}

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
