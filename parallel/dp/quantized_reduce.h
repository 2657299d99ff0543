// Sums of gradients that travel in a byte each (qgZ of ZeRO++, Wang et al. 2023, section 3.3).
#pragma once
#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

/// As groups.shard.reduce_scatter(full, part), of fp32 or fp64, but each part of `full` goes to its rank as ops::pack()
/// makes it, by all-to-all, and is widened before it is added; this rank's own too. Sums are by rank.
///
/// With nodes it is done twice: inside the node, where each rank gets what all ranks at its place of their nodes are to
/// have, and then among those, of the sums of nodes. A node so sends each gradient once, not once for each of its
/// ranks. What is not finite on any rank makes its block NaN. Works may outlive `full` but not the groups.
Work quantized_reduce_scatter(const DataParallelGroups& groups, const Tensor& full, const Tensor& part);

}  // namespace mcpp
