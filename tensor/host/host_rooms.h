// Memory of the host that side copies go to and come from.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/host/side_copies.h"

namespace mcpp {

/// A tensor in host memory that a device copies from and to at its full speed: in pages of its own, which are pinned
/// where that makes a difference.
struct PinnedTensor {
  Tensor tensor;
  std::shared_ptr<void> pin = nullptr;  ///< goes before the memory does
};
PinnedTensor pinned_tensor(const Shape& shape, DType dtype, CpuDevice& host, MemoryClass c, SideCopies& copies);

/// Such tensors, which are used again and again, since to pin them takes long. For any thread; `copies` outlives all of
/// them.
class HostRooms {
 public:
  /// `threads`: of ops on them.
  HostRooms(SideCopies& copies, MemoryClass c, int threads = 1) : pool_(std::make_shared<Pool>(copies, c, threads)) {}

  /// Uninitialised. Whoever drops it gives it back, when no copy needs it any more but such as the next one comes
  /// after.
  std::shared_ptr<const Tensor> take(const Shape& shape, DType dtype);
  /// The most so far, in bytes.
  i64 peak() const { return pool_->host.memory().total.peak; }

 private:
  struct Pool {
    Pool(SideCopies& side_copies, MemoryClass c, int threads)
        : copies(side_copies), memory_class(c), host({.threads = threads}) {}
    SideCopies& copies;
    MemoryClass memory_class;
    CpuDevice host;
    std::mutex mutex;
    std::map<std::pair<DType, i64>, std::vector<PinnedTensor>> free;  ///< by elements
  };

  std::shared_ptr<Pool> pool_;  // rooms that are in use keep it
};

}  // namespace mcpp
