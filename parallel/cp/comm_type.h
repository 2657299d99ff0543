// Algorithms for context-parallel attention.
#pragma once
#include <array>
#include <string_view>

#include "base/fields.h"

namespace mcpp {

/// Communication type; names are Megatron-LM's.
enum class CpCommType : u8 {
  P2p,        ///< keys and values are passed around a ring: RingAttention
  AllGather,  ///< keys and values are gathered: GatheredAttention
  A2a,        ///< positions are exchanged for heads: HeadExchange
  A2aP2p,     ///< hierarchical: heads exchanged among neighbors, with a ring between neighborhoods
};
template <>
struct EnumNames<CpCommType> {
  static constexpr std::array<std::string_view, 4> value{"p2p", "all_gather", "a2a", "a2a+p2p"};
};

}  // namespace mcpp
