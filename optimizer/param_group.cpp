#include "optimizer/param_group.h"

#include <algorithm>
#include <cmath>

namespace mcpp {

OptimizerKind rule_for(bool is_matrix, const OptimizerConfig& config) {
  return config.optimizer == OptimizerKind::Muon && !is_matrix ? OptimizerKind::Adam : config.optimizer;
}

namespace {

/// Returns the factor by which the maximal update parametrization divides the learning rate of a parameter. Adam's
/// updates have the same size for each element, so that their effect on the outputs grows with the width of the inputs.
/// Muon's updates have singular values of 1, or in spectral mode of the square root of the width.
double lr_divisor(const Param& param, OptimizerKind rule, const OptimizerConfig& config) {
  if (rule == OptimizerKind::Adam) return param.width_mult;
  const bool grows = rule == OptimizerKind::Muon && config.muon_scale_mode == MuonScaleMode::Spectral;
  return grows ? std::sqrt(param.width_mult) : 1;
}

}  // namespace

ParamGroup group_of(const Param& param, const OptimizerConfig& config) {
  const bool has_decay = param.box.shape.size() > 1 && !param.name.ends_with(".bias");
  ParamGroup group{.rule = rule_for(!param.matrices.empty(), config),
                   .lr_mult = 1,
                   .wd_mult = has_decay ? 1.0 : 0.0,
                   .adam_beta1 = config.adam_beta1,
                   .adam_beta2 = config.adam_beta2,
                   .adam_eps = config.adam_eps};
  if (const ParamGroupConfig* own = config.find_param_group(param.name)) {
    group.lr_mult = own->lr_mult;
    group.wd_mult = own->wd_mult.value_or(group.wd_mult);
    group.adam_beta1 = own->adam_beta1.value_or(group.adam_beta1);
    group.adam_beta2 = own->adam_beta2.value_or(group.adam_beta2);
    group.adam_eps = own->adam_eps.value_or(group.adam_eps);
  }
  const double divisor = lr_divisor(param, group.rule, config);
  group.lr_mult /= divisor;
  group.wd_mult *= divisor;  // keeps the product of learning rate and weight decay
  if (group.rule == OptimizerKind::Adam) group.adam_eps /= divisor;
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
