// Parameter groups: parameters with the same update settings.
#pragma once
#include <span>
#include <vector>

#include "nn/param.h"
#include "optimizer/config.h"
#include "parallel/dp/buckets/plan.h"

namespace mcpp {

/// Update settings of a parameter group. Names are Megatron-LM's.
struct ParamGroup {
  OptimizerKind rule = OptimizerKind::Adam;
  double lr_mult = 1;  ///< multiplies the learning rate
  double wd_mult = 1;  ///< multiplies the weight decay

  bool operator==(const ParamGroup&) const = default;
};

/// Returns the rule for matrices (Param::matrices), or for other parameters.
OptimizerKind rule_for(bool is_matrix, const OptimizerConfig& config);
/// Returns the group of a parameter. As in Megatron-LM, biases and one-dimensional parameters (norms) do not decay.
ParamGroup group_of(const Param& param, const OptimizerConfig& config);

/// Consecutive elements [begin, end) of the flat vectors in the same group, including padding.
struct GroupRun {
  i64 begin = 0, end = 0;
  ParamGroup group;
};

/// Splits [begin, end) of the flat vectors into the fewest runs. `groups`: one per element of plan.params. Padding
/// belongs to the parameter before it.
std::vector<GroupRun> group_runs(const BufferPlan& plan, std::span<const ParamGroup> groups, i64 begin, i64 end);

}  // namespace mcpp
