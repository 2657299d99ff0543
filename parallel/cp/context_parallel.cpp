#include "parallel/cp/context_parallel.h"

#include "parallel/cp/gathered_attention.h"
#include "parallel/cp/ring_attention.h"

namespace mcpp {

std::unique_ptr<CoreAttention> ContextParallel::make_core_attention() const {
  if (partition.rings == 1) return std::make_unique<LocalAttention>();
  if (comm_type == CpCommType::AllGather) return std::make_unique<GatheredAttention>(*ring);
  return std::make_unique<RingAttention>(*ring);
}

std::unique_ptr<HeadExchange> ContextParallel::make_head_exchange(i64 query_groups) const {
  return partition.heads == 1 ? nullptr : std::make_unique<HeadExchange>(*heads, query_groups);
}

}  // namespace mcpp
