// Asynchronous copies between a device and host memory, overlapped with compute.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Copy in flight. Keeps the memory of both tensors alive. Its destructor orders later device ops after the copy.
/// Unless the host has waited, the host memory may be reused only by later copies in the same direction.
class AsyncCopy {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual void make_stream_wait() = 0;
  };

  AsyncCopy() = default;  ///< already complete
  explicit AsyncCopy(std::unique_ptr<State> state) : state_(std::move(state)) {}
  AsyncCopy(AsyncCopy&&) noexcept = default;
  AsyncCopy& operator=(AsyncCopy&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~AsyncCopy() {
    try {
      make_stream_wait();
    } catch (const Error&) {  // the next wait for the device reports the error
    }
  }

  /// Blocks the host until the copy is done. Callable from any thread.
  void wait() {
    if (const auto state = std::exchange(state_, nullptr)) state->wait();
  }
  /// Orders device ops queued from now on after the copy, without blocking the host. The device memory may then be
  /// released.
  void make_stream_wait() {
    if (state_) state_->make_stream_wait();
  }

 private:
  std::unique_ptr<State> state_;
};

/// Copy engine for the tensors of one device, which must outlive it. Copies in one direction run in order; the two
/// directions run concurrently. Destroy it before host memory that its copies may still use.
class AsyncCopyEngine {
 public:
  virtual ~AsyncCopyEngine() = default;  ///< waits for all copies
  AsyncCopyEngine(const AsyncCopyEngine&) = delete;
  AsyncCopyEngine& operator=(const AsyncCopyEngine&) = delete;

  /// Copies `from` to `to`, which is in host memory, after previously queued ops. Ops queued later must not modify
  /// `from` before make_stream_wait().
  virtual AsyncCopy to_host(const Tensor& from, const Tensor& to) = 0;
  /// Copies `from`, which is in host memory, to `to` after previously queued ops. Ops queued later must not use `to`
  /// before make_stream_wait(). `from` may be modified after wait().
  virtual AsyncCopy to_device(const Tensor& from, const Tensor& to) = 0;
  /// Returns true if copies are synchronous, so that starting them early has no benefit.
  virtual bool is_synchronous() const = 0;
  /// Returns true if this engine copies `t` asynchronously to the host.
  bool copies_asynchronously(const Tensor& t) const {
    return t.defined() && &t.device() == &device_ && !is_synchronous();
  }
  /// Page-locks host memory of whole pages until the result is destroyed. Only copies of such memory are asynchronous
  /// to the host. Returns null if pinning has no effect.
  virtual std::shared_ptr<void> pin(void* memory, i64 bytes) = 0;

 protected:
  explicit AsyncCopyEngine(Device& device) : device_(device) {}

 private:
  Device& device_;
};

/// Backend implementations: tensor/host/async_copy.cpp, tensor/cuda/host/async_copy.cpp.
template <DeviceType D>
std::unique_ptr<AsyncCopyEngine> make_async_copy_engine_on(Device& device);

std::unique_ptr<AsyncCopyEngine> make_async_copy_engine(Device& device);

// Asynchronous readback of values from a device while the host continues to queue work.

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

/// Backend implementations: tensor/host/async_copy.cpp, tensor/cuda/host/async_copy.cpp.
template <DeviceType D>
std::unique_ptr<AsyncReadback> make_async_readback_on(Device& device, i64 count);

/// Creates a readback for tensors of `count` elements on `device`, which must outlive it.
std::unique_ptr<AsyncReadback> make_async_readback(Device& device, i64 count);

}  // namespace mcpp
