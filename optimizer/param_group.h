// Parameter groups: parameters with the same update settings.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "nn/param.h"
#include "optimizer/config.h"
#include "parallel/dp/buckets/plan.h"
#include "parallel/state.h"

namespace mcpp {

/// Update settings of a parameter group. Members are named as in Megatron-LM.
struct ParamGroup {
  OptimizerKind rule = OptimizerKind::Adam;
  double lr_mult = 1;  ///< multiplies the learning rate
  double wd_mult = 1;  ///< multiplies the weight decay
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;

  bool operator==(const ParamGroup&) const = default;
};

/// Returns the rule for matrices (Param::matrices), or for other parameters.
OptimizerKind rule_for(bool is_matrix, const OptimizerConfig& config);
/// Returns the group of a parameter: the settings of OptimizerConfig, and of the first of its param_group tables that
/// matches the name. Param::width_mult scales the update as in the maximal update parametrization. As in Megatron-LM,
/// biases and one-dimensional parameters (norms) do not decay, unless the table sets wd_mult.
ParamGroup group_of(const Param& param, const OptimizerConfig& config);

/// Consecutive elements [begin, end) of the flat vectors in the same group, including padding.
struct GroupRun {
  i64 begin = 0, end = 0;
  ParamGroup group;
};

/// Splits [begin, end) of the flat vectors into the fewest runs. `groups`: one per element of plan.params. Padding
/// belongs to the parameter before it.
std::vector<GroupRun> group_runs(const BufferPlan& plan, std::span<const ParamGroup> groups, i64 begin, i64 end);

// Scope of the global gradient norm.

/// Ranks and parameters over which the global gradient norm is computed.
struct NormScope {
  /// Groups over which the squared sums of a grid's parameters are all-reduced, one by one. Every rank takes part, even
  /// if it has no such parameters. Grids that are not listed have no parameters on any rank.
  std::map<GridKind, std::vector<Communicator*>> groups;
  /// Returns true if this rank counts the parameter: exactly one of the ranks with the same gradient counts it. If
  /// empty, every parameter is counted.
  std::function<bool(const Param&)> is_counted;
};

/// Returns the scope of a layout: sums over the ranks of a grid that together hold one copy of the weights and, if ZeRO
/// shards the gradients (stages 1, 2 and 3), over its shard group. Placements determine which rank counts a parameter.
NormScope make_norm_scope(const ParallelState& parallel, bool has_sharded_grads);

}  // namespace mcpp
