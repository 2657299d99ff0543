// Which parameters are updated alike.
#pragma once
#include <span>
#include <vector>

#include "nn/param.h"
#include "optimizer/config.h"
#include "parallel/dp/buckets/plan.h"

namespace mcpp {

/// What is particular about the update of some parameters. Names are Megatron-LM's.
struct ParamGroup {
  OptimizerKind rule = OptimizerKind::Adam;
  double lr_mult = 1;  ///< multiplies the learning rate
  double wd_mult = 1;  ///< multiplies the weight decay

  bool operator==(const ParamGroup&) const = default;
};

/// Of parameters that are matrices (Param::matrices), and of the others.
OptimizerKind rule_for(bool is_matrix, const OptimizerConfig& config);
/// The group of a parameter. Megatron-LM's rule: biases and one-dimensional parameters (norms) do not decay.
ParamGroup group_of(const Param& param, const OptimizerConfig& config);

/// Consecutive elements [begin, end) of the flat vectors, of parameters of the same group (padding between them
/// included).
struct GroupRun {
  i64 begin = 0, end = 0;
  ParamGroup group;
};

/// [begin, end) of the flat vectors as the fewest runs. `groups`: of each of plan.params. Padding goes with the
/// parameter before it.
std::vector<GroupRun> group_runs(const BufferPlan& plan, std::span<const ParamGroup> groups, i64 begin, i64 end);

}  // namespace mcpp
