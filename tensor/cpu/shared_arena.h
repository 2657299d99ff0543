// Host memory that other processes of this host can map, so that ranks access each other's tensors in place.
#pragma once
#include <sys/types.h>

#include <map>
#include <memory>
#include <string_view>

#include "base/types.h"

namespace mcpp {

constexpr i64 kHugePage = 2 << 20;

/// Identifies an arena to other processes by its file descriptor in the owner process and a unique id.
struct ArenaName {
  u64 id = 0;  ///< 0: none
  i64 bytes = 0;
  pid_t owner = 0;
  int fd = -1;
};

/// Mapping of a complete anonymous memory file, aligned to huge pages. Pages are allocated on first access.
class ArenaMapping {
 public:
  /// Maps the file. base() is nullptr if this fails.
  ArenaMapping(int fd, i64 bytes) noexcept;
  ~ArenaMapping();
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;
  std::byte* base() const { return base_; }

 private:
  std::byte* base_ = nullptr;
  i64 bytes_;
};

/// Arena of this process: a sparse file without a path, which the system frees with the last process that maps it. Not
/// thread-safe; the device's pool locks.
class SharedArena {
 public:
  /// Minimum block size. Smaller blocks do not justify pages of their own.
  static constexpr i64 kSmallestBlock = 16 << 10;

  /// Creates an arena of at most `max_bytes`; `what` is the name displayed by the system. It reserves address space in
  /// every process that maps it; memory is allocated on use. Returns nullptr if the system does not support memory that
  /// other processes can map.
  static std::unique_ptr<SharedArena> create(std::string_view what, i64 max_bytes);
  /// Creates the arena for tensors, as large as the host's memory.
  static std::unique_ptr<SharedArena> create();
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// Returns a page-aligned block, or nullptr if the arena is full. Blocks of at least 2 MiB are aligned to 2 MiB.
  void* allocate(i64 bytes);
  /// Returns the memory of a block to the system.
  void free(void* block) noexcept;

  bool contains(const void* p) const {
    const auto* byte = static_cast<const std::byte*>(p);
    return byte >= mapping_.base() && byte < mapping_.base() + name_.bytes;
  }
  /// Returns the offset of `p` from the start of the arena, which is identical in every mapping.
  i64 offset_of(const void* p) const { return static_cast<const std::byte*>(p) - mapping_.base(); }
  void* at(i64 offset) const { return mapping_.base() + offset; }
  const ArenaName& name() const { return name_; }

 private:
  explicit SharedArena(const ArenaName& name);

  ArenaName name_;
  ArenaMapping mapping_;
  std::map<i64, i64> free_;  // bytes by offset; adjacent blocks are merged
  std::map<i64, i64> used_;
};

/// Maps the arena of a different process of this host. Returns nullptr if the arena is not accessible, for example from
/// a different container or user.
std::unique_ptr<ArenaMapping> map_arena(const ArenaName& name);

}  // namespace mcpp
