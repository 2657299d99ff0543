// Storage tiers for data that does not fit into device memory.
#pragma once
#include <array>
#include <string_view>

#include "base/fields.h"

namespace mcpp {

/// Storage tier: device memory with the weights, host memory, or a file on disk.
enum class OffloadTier { Device, Host, File };

template <>
struct EnumNames<OffloadTier> {
  static constexpr std::array<std::string_view, 3> value{"device", "host", "file"};
};

/// Number of bytes offloaded from a device, by tier.
struct OffloadedBytes {
  i64 in_host = 0, on_disk = 0;

  OffloadedBytes& operator+=(const OffloadedBytes& b) {
    in_host += b.in_host, on_disk += b.on_disk;
    return *this;
  }
};

}  // namespace mcpp
