// Measurement of a rank's wait times, by the clock of the host or of an asynchronous device.
#pragma once
#include <memory>

#include "tensor/device.h"
#include "tensor/profiler.h"

namespace mcpp {

/// Measures wait times of an asynchronous device without blocking the host. Not thread-safe.
class DeviceWaitTimer {
 public:
  virtual ~DeviceWaitTimer() = default;
  /// Brackets the work the device waits for: time is counted from when all earlier work is done until the bracketed
  /// work is done. Not nested. Errors surface at the next synchronization with the device.
  virtual void begin() noexcept = 0;
  virtual void end() noexcept = 0;
  /// Returns the seconds of the waits completed since the last call. Waits that have not completed are returned by
  /// later calls. Does not block.
  virtual double take_seconds() noexcept = 0;
  /// Blocks the host until all queued work is done; throws its errors.
  virtual void wait_for_device() = 0;
};

/// Backend implementations: tensor/host/device_wait_timer.cpp, tensor/cuda/host/device_wait_timer.cpp.
template <DeviceType D>
std::unique_ptr<DeviceWaitTimer> make_device_wait_timer_on(Device& device);

/// Returns null for a CPU, which waits synchronously. The device must outlive the result.
std::unique_ptr<DeviceWaitTimer> make_device_wait_timer(Device& device);

/// Scope in which a rank waits. Adds the seconds measured by `waits` to `seconds`, with some delay; if `waits` is null,
/// adds the seconds measured on the host. The profiler, if not null, records the host's time.
class WaitRange {
 public:
  WaitRange(double& seconds, DeviceWaitTimer* waits, Profiler* profiler, std::string_view name, RangeKind kind,
            const RangeInfo& info = {})
      : seconds_(seconds), waits_(waits), range_(waits ? host_seconds_ : seconds, profiler, name, kind, info) {
    if (waits_) waits_->begin();
  }
  ~WaitRange() {
    if (!waits_) return;
    waits_->end();
    seconds_ += waits_->take_seconds();
  }
  WaitRange(const WaitRange&) = delete;
  WaitRange& operator=(const WaitRange&) = delete;

 private:
  double& seconds_;
  double host_seconds_ = 0;
  DeviceWaitTimer* waits_;
  CountedRange range_;
};

}  // namespace mcpp
