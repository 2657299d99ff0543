// Full-precision view of master weights that are stored as remainders, for checkpoints.
#pragma once
#include "tensor/ops/low_precision/param_remainders.h"
#include "tensor/tensor_storage.h"

namespace mcpp {

/// Stored parts of some master weights.
struct MasterParts {
  std::shared_ptr<TensorStorage> model;            ///< the model's weight of each
  std::shared_ptr<TensorStorage> low, rounded_up;  ///< ParamRemainders, of whole blocks
  i64 offset = 0;                                  ///< of the first element in its block
};

/// Returns fp32 weights that are composed from their parts on read, and split into them on write, including the model's
/// weights.
std::shared_ptr<TensorStorage> reconstructed_master(MasterParts parts);

}  // namespace mcpp
