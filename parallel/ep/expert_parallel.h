// Expert parallelism (Shazeer et al. 2017; Lepikhin et al., "GShard", 2021): each rank has some of the experts of a
// layer, and tokens travel to those that take them. The ranks are those of the dense layers, on a grid of their own
// (Liu et al., "MoE Parallel Folding", 2025): ep neighbourhoods of expert_tensor_parallel_size ranks, each of which has
// a part of the width of its experts.
#pragma once
#include <array>
#include <string_view>

#include "base/fields.h"
#include "comm/communicator.h"

namespace mcpp {

/// How tokens come to their experts: each to the ranks that have them, or all to all ranks of the group.
enum class TokenDispatcherType : u8 { AllToAll, AllGather };
template <>
struct EnumNames<TokenDispatcherType> {
  static constexpr std::array<std::string_view, 2> value{"alltoall", "allgather"};
};

/// What a rank does of it. As made: it has all experts.
struct ExpertParallel {
  TokenDispatcherType dispatcher = TokenDispatcherType::AllToAll;
  int ep = 1, ep_rank = 0;  ///< parts of the experts, and this rank's
  int tp = 1, tp_rank = 0;  ///< parts of the width of each expert, and this rank's
  /// Those that exchange tokens, ep * tp ranks, those of one part of the experts side by side; null = this one alone.
  Communicator* exchange = nullptr;
  /// Those that see tokens of the same samples: tensor- and context-parallel ranks; null = this one alone.
  Communicator* sample = nullptr;
};

}  // namespace mcpp
