// Host memory that other processes of this machine can map, so that ranks read and write one another's tensors in
// place.
#pragma once
#include <sys/types.h>

#include <map>
#include <memory>
#include <string_view>

#include "base/types.h"

namespace mcpp {

constexpr i64 kHugePage = 2 << 20;

/// What another process needs to find an arena: the file descriptor of its owner, and a number that no two arenas
/// share.
struct ArenaName {
  u64 id = 0;  ///< 0: none
  i64 bytes = 0;
  pid_t owner = 0;
  int fd = -1;
};

/// A whole anonymous file in memory, aligned to huge pages. Pages are there once they are touched.
class ArenaMapping {
 public:
  /// Throws nothing: base() is null when the system refuses.
  ArenaMapping(int fd, i64 bytes) noexcept;
  ~ArenaMapping();
  ArenaMapping(const ArenaMapping&) = delete;
  ArenaMapping& operator=(const ArenaMapping&) = delete;
  std::byte* base() const { return base_; }

 private:
  std::byte* base_ = nullptr;
  i64 bytes_;
};

/// An arena of this process: a sparse file without a path, which the system frees with its last process however that
/// ends. Not locked: the pool of the device is.
class SharedArena {
 public:
  /// Smaller blocks are not worth a page of their own.
  static constexpr i64 kSmallestBlock = 16 << 10;

  /// For what the system then shows it as, of so many bytes at most: they take room among addresses, in every process
  /// that maps it, and memory as they are used. nullptr where the system has no such memory.
  static std::unique_ptr<SharedArena> create(std::string_view what, i64 most_bytes);
  /// For tensors: as large as the machine's memory.
  static std::unique_ptr<SharedArena> create();
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  /// A block on a page boundary, of 2 MiB where it is that large; nullptr when there is no room.
  void* allocate(i64 bytes);
  /// Gives the memory of a block back to the system.
  void free(void* block) noexcept;

  bool contains(const void* p) const {
    const auto* byte = static_cast<const std::byte*>(p);
    return byte >= mapping_.base() && byte < mapping_.base() + name_.bytes;
  }
  /// Where p, inside the arena, is in every mapping of it.
  i64 offset_of(const void* p) const { return static_cast<const std::byte*>(p) - mapping_.base(); }
  void* at(i64 offset) const { return mapping_.base() + offset; }
  const ArenaName& name() const { return name_; }

 private:
  explicit SharedArena(const ArenaName& name);

  ArenaName name_;
  ArenaMapping mapping_;
  std::map<i64, i64> free_;  // bytes by offset; neighbours are one
  std::map<i64, i64> used_;
};

/// The arena of another process of this machine, or null when it cannot be reached: another container, another user.
std::unique_ptr<ArenaMapping> map_arena(const ArenaName& name);

}  // namespace mcpp
