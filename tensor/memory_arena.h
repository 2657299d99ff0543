// Memory of recorded work, whose addresses must not change.
#pragma once
#include <map>
#include <vector>

#include "tensor/device.h"

namespace mcpp {

/// Blocks of a device that only the scopes of this arena use. Blocks come from the device's pool and return to it when
/// the arena is destroyed. The memory table counts blocks in use by the class of their tensors, and free blocks as
/// MemoryClass::RecordedPasses. Work that was recorded in a scope may run again, because nothing else uses the memory;
/// it must not run concurrently with other work in the arena.
class MemoryArena {
 public:
  /// Allowed: the arena takes further blocks from the device. Refused: an allocation for which the arena has no free
  /// block throws an Internal error.
  enum class Growth : u8 { Allowed, Refused };

  explicit MemoryArena(Device& device);
  ~MemoryArena();  ///< tensors that still use blocks return them to the pool later
  MemoryArena(const MemoryArena&) = delete;
  MemoryArena& operator=(const MemoryArena&) = delete;

  /// Scope in which the calling thread's allocations on the device come from the arena. Other threads use the pool.
  /// Tensors may outlive it. A device has at most one scope at a time.
  class Scope {
   public:
    Scope(MemoryArena& arena, Growth growth);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    MemoryArena& arena_;
  };

  /// Returns the bytes of all blocks.
  i64 bytes() const;
  /// Returns the bytes of the blocks in use by tensors.
  i64 live_bytes() const;
  /// Returns true if the thread of the last scope released memory of the pool during the scope. Work recorded in the
  /// scope may use this memory, although the pool may give it to other tensors.
  bool has_foreign_release() const { return has_foreign_release_; }

 private:
  friend class Device;
  // Called with the lock of the device's pool.
  void* allocate(i64 size, i64 bytes, MemoryClass c);
  void release(void* data, i64 size, MemoryClass c);
  void note_foreign_release() { has_foreign_release_ = true; }

  Device& device_;
  std::map<i64, std::vector<void*>> free_blocks_;  // by size
  i64 bytes_ = 0, live_bytes_ = 0;
  Growth growth_ = Growth::Allowed;
  bool has_foreign_release_ = false;
};

}  // namespace mcpp
