// Buffers between a disk and the producer or consumer of its bytes.
#pragma once
#include <memory>
#include <span>

#include "base/types.h"

namespace mcpp {

/// Ring of blocks in huge pages, each the unit of one disk read or write: large enough for the disk, and few enough to
/// stay in the CPU's cache.
class BlockMemory {
 public:
  static constexpr i64 kBlocks = 3, kBlockBytes = i64{4} << 20;
  /// Alignment of offsets, sizes and addresses for direct I/O; blocks are aligned.
  static constexpr i64 kAlignment = 4096;

  BlockMemory();
  /// Returns block `number` modulo kBlocks.
  std::span<std::byte> block(i64 number) const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace mcpp
