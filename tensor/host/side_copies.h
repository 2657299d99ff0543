// Asynchronous copies between a device and host memory, overlapped with compute.
#pragma once
#include <memory>
#include <utility>

#include "base/check.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Copy in flight. Keeps the memory of both tensors alive. Its destructor orders later device ops after the copy. Host
/// memory may be reused only by later copies in the same direction, unless the host has waited.
class SideCopy {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual void wait() = 0;
    virtual void hold_ops() = 0;
  };

  SideCopy() = default;  ///< done
  explicit SideCopy(std::unique_ptr<State> state) : state_(std::move(state)) {}
  SideCopy(SideCopy&&) noexcept = default;
  SideCopy& operator=(SideCopy&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~SideCopy() {
    try {
      hold_ops();
    } catch (const Error&) {  // the next wait for the device reports the error
    }
  }

  /// Blocks the host until the copy is done. Callable from any thread.
  void wait() {
    if (const auto state = std::exchange(state_, nullptr)) state->wait();
  }
  /// Orders device ops queued from now on after the copy, without blocking the host. The device memory may then be
  /// released.
  void hold_ops() {
    if (state_) state_->hold_ops();
  }

 private:
  std::unique_ptr<State> state_;
};

/// Copy engine for the tensors of one device, which must outlive it. Copies in one direction run in order; the two
/// directions run concurrently. Destroy it before host memory that its copies may still use.
class SideCopies {
 public:
  virtual ~SideCopies() = default;  ///< waits for all copies
  SideCopies(const SideCopies&) = delete;
  SideCopies& operator=(const SideCopies&) = delete;

  /// Copies `from` to `to`, which is in host memory, after previously queued ops. Ops queued later must not modify
  /// `from` before hold_ops().
  virtual SideCopy to_host(const Tensor& from, const Tensor& to) = 0;
  /// Copies `from`, which is in host memory, to `to` after previously queued ops. Ops queued later must not use `to`
  /// before hold_ops(). `from` may be modified after wait().
  virtual SideCopy to_device(const Tensor& from, const Tensor& to) = 0;
  /// Returns true if copies are synchronous, so that starting them early has no benefit.
  virtual bool are_immediate() const = 0;
  /// Returns true if this engine copies `t` asynchronously to the host.
  bool are_for(const Tensor& t) const { return t.defined() && &t.device() == &device_ && !are_immediate(); }
  /// Page-locks host memory of whole pages until the result is destroyed. Only copies of such memory are asynchronous
  /// to the host. Returns null if pinning has no effect.
  virtual std::shared_ptr<void> pin(void* memory, i64 bytes) = 0;

 protected:
  explicit SideCopies(Device& device) : device_(device) {}

 private:
  Device& device_;
};

/// Backend implementations: tensor/host/side_copies.cpp, tensor/cuda/host/side_copies.cpp.
template <DeviceType D>
std::unique_ptr<SideCopies> make_side_copies_on(Device& device);

std::unique_ptr<SideCopies> make_side_copies(Device& device);

}  // namespace mcpp
