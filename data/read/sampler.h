// Which samples are read next, as a function of how many were consumed before: Megatron-LM's
// MegatronPretrainingSampler. Nothing else is state, so a resumed run, on any layout, continues with the same samples.
#pragma once
#include <vector>

#include "base/types.h"

namespace mcpp {

struct SamplerLayout {
  i64 micro_batch_size = 1;
  i64 data_parallel_size = 1;
  i64 data_parallel_rank = 0;
};

/// Micro-batches each rank runs per global batch; BadInput unless the sizes divide.
i64 num_micro_batches(i64 global_batch_size, const SamplerLayout& layout);

/// The samples of micro-batch `micro_batch` of the global batch that begins after `consumed_samples`: row i is
/// consumed + (micro_batch * dp_size + dp_rank) * micro_batch_size + i. [micro_batch_size]
std::vector<i64> micro_batch_samples(i64 consumed_samples, i64 micro_batch, const SamplerLayout& layout);

/// All samples of that global batch, in order; the same for every layout. [global_batch_size]
std::vector<i64> global_batch_samples(i64 consumed_samples, i64 global_batch_size);

}  // namespace mcpp
