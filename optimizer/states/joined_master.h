// Master weights that are kept as remainders, as checkpoints see them: in full.
#pragma once
#include "tensor/ops/narrow/param_remainders.h"
#include "tensor/stored_numbers.h"

namespace mcpp {

/// Where the parts of some master weights are.
struct MasterParts {
  std::shared_ptr<StoredNumbers> model;         ///< of each its weight in the model
  std::shared_ptr<StoredNumbers> low, went_up;  ///< ParamRemainders, of whole blocks
  i64 offset = 0;                               ///< of the first in its block
};

/// Weights in fp32, which are read from their parts and written into all of these: into the model, too.
std::shared_ptr<StoredNumbers> joined_master(MasterParts parts);

}  // namespace mcpp
