// Memory between a disk and what makes or uses its bytes.
#pragma once
#include <memory>
#include <span>

#include "base/types.h"

namespace mcpp {

/// Blocks that take turns, in huge pages, of which a disk reads or writes a block at once; large enough for it, and few
/// enough to stay in the processor's cache meanwhile.
class BlockMemory {
 public:
  static constexpr i64 kBlocks = 3, kBlockBytes = i64{4} << 20;
  /// Offsets, sizes and addresses of what goes past the system's page cache are multiples of this; blocks are.
  static constexpr i64 kAlignment = 4096;

  BlockMemory();
  /// That of block 0, 1, ...: of the kBlocks-th the first again.
  std::span<std::byte> block(i64 number) const;

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace mcpp
