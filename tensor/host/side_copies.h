// Copies between a device and memory of the host that go on beside what the device computes.
#pragma once
#include <memory>
#include <utility>

#include "base/check.h"
#include "tensor/tensor.h"

namespace mcpp {

/// A copy on its way. It keeps the memory of both its tensors. Who destroys it lets later ops come after it; of the
/// memory on the host only later copies the same way do, unless the host has waited.
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
    } catch (const Error&) {  // the next who waits for the device finds the reason
    }
  }

  /// The host waits until it is done. For any thread.
  void wait() {
    if (const auto state = std::exchange(state_, nullptr)) state->wait();
  }
  /// Ops of the device that are queued from here on come after it; the host goes on. The memory on the device may go
  /// then.
  void hold_ops() {
    if (state_) state_->hold_ops();
  }

 private:
  std::unique_ptr<State> state_;
};

/// For tensors of one device, which outlives it. Copies one way are done in their order, those of the two ways beside
/// one another. To be destroyed before memory of the host that its copies may still use.
class SideCopies {
 public:
  virtual ~SideCopies() = default;  ///< when all are done
  SideCopies(const SideCopies&) = delete;
  SideCopies& operator=(const SideCopies&) = delete;

  /// to = from, in memory of the host, after the ops that were queued before. What is queued later must not change
  /// `from` before hold_ops().
  virtual SideCopy to_host(const Tensor& from, const Tensor& to) = 0;
  /// to = from, which is in memory of the host, after the ops that were queued before; what is queued later must not
  /// use `to` before hold_ops(). `from` may be changed after wait().
  virtual SideCopy to_device(const Tensor& from, const Tensor& to) = 0;
  /// Every copy is done when it returns, so that there is no use in beginning one early.
  virtual bool are_immediate() const = 0;
  /// Whether these are what brings such a tensor to the host beside the computing.
  bool are_for(const Tensor& t) const { return t.defined() && &t.device() == &device_ && !are_immediate(); }
  /// Makes memory of the host, of whole pages, quick to copy from and to until the result goes. Only copies of such
  /// memory go on beside the host, too. Null where it makes no difference.
  virtual std::shared_ptr<void> pin(void* memory, i64 bytes) = 0;

 protected:
  explicit SideCopies(Device& device) : device_(device) {}

 private:
  Device& device_;
};

/// Defined by each backend: tensor/host/side_copies.cpp, tensor/cuda/host/side_copies.cpp.
template <DeviceType D>
std::unique_ptr<SideCopies> make_side_copies_on(Device& device);

std::unique_ptr<SideCopies> make_side_copies(Device& device);

}  // namespace mcpp
