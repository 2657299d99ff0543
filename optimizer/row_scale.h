// Scaling of some elements of weights within an update, for QK-clip.
#pragma once
#include <map>
#include <vector>

#include "nn/param.h"
#include "optimizer/update_rule.h"

namespace mcpp {

/// Elements [first, first + count) of a parameter's box, and the factor that multiplies them.
struct RowScale {
  i64 first, count;
  double factor;
};
using RowScales = std::map<const Param*, std::vector<RowScale>>;

/// Multiplies the weights of a part, and rounds the result to the model.
void scale_rows(UpdatePart& part, const RowScales& scales);

}  // namespace mcpp
