// How long a rank waits, by the clock of what waits: the host, or a device that works behind it.
#pragma once
#include <memory>

#include "tensor/device.h"
#include "tensor/profiler.h"

namespace mcpp {

/// Of a processor that works behind the host, whose host does not wait. For one thread.
class DeviceWaits {
 public:
  virtual ~DeviceWaits() = default;
  /// What is queued between begin() and end() it waits for: from when all before is done until that is. Not nested.
  /// What fails the next shows who waits for the device.
  virtual void begin() noexcept = 0;
  virtual void end() noexcept = 0;
  /// Seconds of the waits that have ended since the last call; of those to come a later call tells. Does not wait.
  virtual double take_seconds() noexcept = 0;
  /// The host waits until all that was queued is done; throws what failed there.
  virtual void wait_for_device() = 0;
};

/// Defined by each backend: tensor/host/device_waits.cpp, tensor/cuda/host/device_waits.cpp.
template <DeviceType D>
std::unique_ptr<DeviceWaits> make_device_waits_on(Device& device);

/// Null for a CPU, which waits as the host does. The device outlives it.
std::unique_ptr<DeviceWaits> make_device_waits(Device& device);

/// From its construction to its end a rank waits. The seconds are added to `seconds`: those of `waits`, a little later,
/// or without it the host's. The profiler, if there is one, hears of the host's.
class WaitRange {
 public:
  WaitRange(double& seconds, DeviceWaits* waits, Profiler* profiler, std::string_view name, RangeKind kind,
            const RangeFacts& facts = {})
      : seconds_(seconds), waits_(waits), range_(waits ? of_host_ : seconds, profiler, name, kind, facts) {
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
  double of_host_ = 0;
  DeviceWaits* waits_;
  CountedRange range_;
};

}  // namespace mcpp
