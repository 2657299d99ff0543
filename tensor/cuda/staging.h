// Copies to the GPU that the host does not wait for.
#pragma once
#include <cuda_runtime.h>

#include <deque>
#include <mutex>

#include "tensor/cuda/event.h"
#include "tensor/host/staging_ring.h"

namespace mcpp {

/// Memory of the host that the GPU copies from while the host goes on: the driver can do that with pinned memory only.
/// What is written passes through a ring of it, and the host waits only while as much is on its way as the ring holds.
/// Threads may share one.
class Staging {
 public:
  Staging() = default;
  ~Staging();  ///< when the streams of all writes are done
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Copies `bytes` at `from`, which may be changed at once, to `to` on the GPU, in the order of `stream`.
  void write(const void* from, void* to, i64 bytes, cudaStream_t stream);

 private:
  void write_piece(const void* from, void* to, i64 bytes, cudaStream_t stream);

  std::mutex mutex_;
  std::byte* memory_ = nullptr;  // from the first write on
  StagingRing ring_{kCapacity};
  std::deque<CudaEvent> copied_;  // of the ring's pieces, oldest first

  /// Tokens of a step are some MiB; larger writes, as of weights, overlap the host's copy with the GPU's.
  static constexpr i64 kCapacity = i64{32} << 20;
  static constexpr i64 kPiece = i64{4} << 20;
};

}  // namespace mcpp
