// Sample order as a function of the number of consumed samples only, as in Megatron-LM's MegatronPretrainingSampler. A
// run that resumes in a different layout therefore continues with the same samples.
#pragma once
#include <vector>

#include "base/types.h"

namespace mcpp {

struct SamplerLayout {
  i64 micro_batch_size = 1;
  i64 data_parallel_size = 1;
  i64 data_parallel_rank = 0;
};

/// Returns the number of microbatches that each rank runs per global batch. Throws BadInput unless the global batch
/// size is a multiple of micro_batch_size * data_parallel_size.
i64 num_micro_batches(i64 global_batch_size, const SamplerLayout& layout);

/// Returns the samples of microbatch `micro_batch` of the global batch that starts after `consumed_samples`: row i is
/// consumed + (micro_batch * dp_size + dp_rank) * micro_batch_size + i. [micro_batch_size]
std::vector<i64> micro_batch_samples(i64 consumed_samples, i64 micro_batch, const SamplerLayout& layout);

/// Returns all samples of the global batch that starts after `consumed_samples`, in order, independent of the layout.
/// [global_batch_size]
std::vector<i64> global_batch_samples(i64 consumed_samples, i64 global_batch_size);

}  // namespace mcpp
