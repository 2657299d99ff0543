// Sums of gradients that travel in fewer bytes than they have: rounded to bf16, as Megatron-LM's
// reduce_scatter_with_fp32_accumulation has it, or in a byte each (qgZ of ZeRO++, Wang et al. 2023, section 3.3).
#pragma once
#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

/// As groups.shard.reduce_scatter(full, part), of fp32 or fp64, but each part of `full` goes to its rank as ops::pack()
/// makes it for this wire, which is not Full, by all-to-all, and is widened before it is added; this rank's own too.
/// Sums are by rank.
///
/// With nodes it is done twice: inside the node, where each rank gets what all ranks at its place of their nodes are to
/// have, and then among those, of the sums of nodes. A node so sends each gradient once, not once for each of its
/// ranks. What is not finite on any rank is not finite in the sum. Works may outlive `full` but not the groups.
Work narrow_reduce_scatter(const DataParallelGroups& groups, GradWire wire, const Tensor& full, const Tensor& part);

}  // namespace mcpp
