// Asynchronous copies from the host to the GPU.
#pragma once
#include <cuda_runtime.h>

#include <deque>
#include <mutex>

#include "tensor/cuda/event.h"
#include "tensor/host/staging_ring.h"

namespace mcpp {

/// Ring of pinned host memory for writes to the GPU, since the driver copies asynchronously only from pinned memory.
/// The host blocks only while the ring is full. Thread-safe.
class Staging {
 public:
  Staging() = default;
  ~Staging();  ///< waits for the streams of all writes
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Copies `bytes` at `from`, which may be modified immediately, to `to` on the GPU, in the order of `stream`.
  void write(const void* from, void* to, i64 bytes, cudaStream_t stream);

 private:
  void write_piece(const void* from, void* to, i64 bytes, cudaStream_t stream);

  std::mutex mutex_;
  std::byte* memory_ = nullptr;  // allocated by the first write
  StagingRing ring_{kCapacity};
  std::deque<CudaEvent> copied_;  // events of the ring's pieces, oldest first

  /// A step's tokens take a few MiB; larger writes, such as weights, overlap the host's copy with the GPU's.
  static constexpr i64 kCapacity = i64{32} << 20;
  static constexpr i64 kPiece = i64{4} << 20;
};

}  // namespace mcpp
