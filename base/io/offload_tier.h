// Where numbers are kept that a device's memory is too small for.
#pragma once
#include <array>
#include <string_view>

#include "base/fields.h"

namespace mcpp {

/// With the weights, in the memory of the host, on a disk.
enum class OffloadTier { Device, Host, File };

template <>
struct EnumNames<OffloadTier> {
  static constexpr std::array<std::string_view, 3> value{"device", "host", "file"};
};

/// What is kept elsewhere than on a device.
struct BytesAway {
  i64 in_host = 0, on_disk = 0;

  BytesAway& operator+=(const BytesAway& b) {
    in_host += b.in_host, on_disk += b.on_disk;
    return *this;
  }
};

}  // namespace mcpp
