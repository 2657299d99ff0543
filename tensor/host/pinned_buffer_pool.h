// Pool of host buffers for asynchronous copies.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/host/async_copy.h"

namespace mcpp {

/// Host tensor on separate pages, which are pinned if copies need it for full speed.
struct PinnedTensor {
  Tensor tensor;
  std::shared_ptr<void> pin = nullptr;  ///< destroyed before the memory
};
PinnedTensor pinned_tensor(const Shape& shape, DType dtype, CpuDevice& host, MemoryClass c, AsyncCopyEngine& copies);

/// Pool of pinned host tensors, which are reused because pinning is slow. Thread-safe. `copies` must outlive the pool
/// and its tensors.
class PinnedBufferPool {
 public:
  /// `threads` is the thread count of ops on the tensors.
  PinnedBufferPool(AsyncCopyEngine& copies, MemoryClass c, int threads = 1)
      : pool_(std::make_shared<Pool>(copies, c, threads)) {}

  /// Returns an uninitialized pinned buffer; releasing the pointer returns it to the pool. Before releasing it, wait
  /// for its copies, unless the next user of the buffer is stream-ordered after them.
  std::shared_ptr<const Tensor> take(const Shape& shape, DType dtype);
  /// Returns the peak usage in bytes.
  i64 peak() const { return pool_->host.memory().total.peak; }

 private:
  struct Pool {
    Pool(AsyncCopyEngine& side_copies, MemoryClass c, int threads)
        : copies(side_copies), memory_class(c), host({.threads = threads}) {}
    AsyncCopyEngine& copies;
    MemoryClass memory_class;
    CpuDevice host;
    std::mutex mutex;
    std::map<std::pair<DType, i64>, std::vector<PinnedTensor>> free;  ///< buffers by dtype and number of elements
  };

  std::shared_ptr<Pool> pool_;  // kept alive by buffers in use
};

}  // namespace mcpp
