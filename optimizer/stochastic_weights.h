// Weights without master weights: an update computes them in fp32 from the bf16 weights, and rounds them stochastically
// (tensor/ops/low_precision/stochastic_round.h).
#pragma once
#include "optimizer/update_rule.h"

namespace mcpp {

/// Rounds the weights of a part to its model's weights. The random numbers depend on `seed`, the names of the
/// parameters, the elements of the full tensors, and the number of the update, and thus not on the layout.
void round_weights(UpdatePart& part, u64 seed, i64 step);

}  // namespace mcpp
