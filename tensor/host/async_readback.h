// Asynchronous readback of values from a device while the host continues to queue work.
#pragma once
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace mcpp {

/// Asynchronous readback, one copy at a time. The host memory (pinned for a GPU) is reused between copies.
class AsyncReadback {
 public:
  virtual ~AsyncReadback() = default;
  AsyncReadback(const AsyncReadback&) = delete;
  AsyncReadback& operator=(const AsyncReadback&) = delete;

  /// Starts a copy, stream-ordered after earlier ops. `from` must be fp64 with the number of elements passed at
  /// construction; later ops may modify it.
  virtual void start(const Tensor& from) = 0;
  /// Waits for the last started copy, but not for work queued after it, and returns its values.
  virtual std::vector<double> values() = 0;

 protected:
  AsyncReadback() = default;
};

/// Backend implementations: tensor/host/async_readback.cpp, tensor/cuda/host/async_readback.cpp.
template <DeviceType D>
std::unique_ptr<AsyncReadback> make_async_readback_on(Device& device, i64 count);

/// Creates a readback for tensors of `count` elements on `device`, which must outlive it.
std::unique_ptr<AsyncReadback> make_async_readback(Device& device, i64 count);

}  // namespace mcpp
