// Gradient reduction with compressed messages: rounded to bf16, as with Megatron-LM's
// reduce_scatter_with_fp32_accumulation, or int8 (qgZ of ZeRO++, Wang et al. 2023, section 3.3).
#pragma once
#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

/// Reduce-scatters `full` (fp32 or fp64) over groups.shard into `part`, like Communicator::reduce_scatter, but sends
/// every part, including this rank's own, encoded by ops::pack(). `wire` must not be Full. Parts are exchanged by
/// all-to-all, decoded, and summed in rank order.
///
/// With nodes, it reduces twice: within the node, where each rank receives the parts for all ranks with its index on
/// their nodes, and then the node sums among those ranks. A node thus sends each gradient once instead of once per
/// rank. A value that is not finite on any rank is not finite in the sum. Works may outlive `full` but not the groups.
Work compressed_reduce_scatter(const DataParallelGroups& groups, GradReduceFormat wire, const Tensor& full,
                               const Tensor& part);

}  // namespace mcpp
