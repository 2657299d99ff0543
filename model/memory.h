// How much memory a model takes on one rank, by arithmetic alone.
#pragma once
#include "model/context.h"

namespace mcpp {

/// Bytes on one rank, without parallelism.
struct MemoryEstimate {
  double params = 0, grads = 0, optimizer_state = 0;
  double activations = 0;  ///< kept for backward by one microbatch, and the largest temporaries of its last layer

  double total() const { return params + grads + optimizer_state + activations; }
};

/// `states_per_param`: fp32 numbers that the optimizer keeps beside master weights: 2 for AdamW, 1 for SGD.
MemoryEstimate estimate_memory(const ModelConfig& config, DType dtype, const Recompute& recompute, i64 micro_batch_size,
                               int states_per_param);

}  // namespace mcpp
