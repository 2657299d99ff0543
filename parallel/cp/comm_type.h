// The ways for attention to meet the keys of other context-parallel ranks.
#pragma once
#include <array>
#include <string_view>

#include "base/fields.h"

namespace mcpp {

/// Names are Megatron-LM's.
enum class CpCommType : u8 {
  P2p,        ///< keys and values travel round a ring: RingAttention
  AllGather,  ///< keys and values are gathered: GatheredAttention
  A2a,        ///< positions are exchanged for heads: HeadExchange
  A2aP2p,     ///< exchanged among neighbours, and a ring between these: hierarchical
};
template <>
struct EnumNames<CpCommType> {
  static constexpr std::array<std::string_view, 4> value{"p2p", "all_gather", "a2a", "a2a+p2p"};
};

}  // namespace mcpp
