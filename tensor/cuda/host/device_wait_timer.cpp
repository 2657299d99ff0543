#include "tensor/host/device_wait_timer.h"

#include <deque>
#include <utility>
#include <vector>

#include "tensor/cuda/device.h"
#include "tensor/cuda/event.h"

namespace mcpp {
namespace {

/// Records two events on the compute stream around each wait.
class CudaWaitTimer final : public DeviceWaitTimer {
 public:
  explicit CudaWaitTimer(CudaDevice& device) : device_(device) {}

  void begin() noexcept override {
    try {
      device_.activate();
      if (!open_) open_ = take_pair();
      open_->first.record(device_.stream());
    } catch (const Error&) {  // the next wait for the device reports the error
      open_.reset();
    }
  }
  void end() noexcept override {
    if (!open_) return;
    try {
      device_.activate();
      open_->second.record(device_.stream());
      in_flight_.push_back(std::move(open_));
    } catch (const Error&) {
      open_.reset();
    }
  }
  double take_seconds() noexcept override {
    double seconds = 0;
    try {
      while (!in_flight_.empty() && in_flight_.front()->second.is_done()) {
        const Pair& pair = *in_flight_.front();
        seconds += static_cast<double>(pair.second.milliseconds_since(pair.first)) / 1e3;
        free_.push_back(std::move(in_flight_.front()));
        in_flight_.pop_front();
      }
    } catch (const Error&) {
      in_flight_.clear();
    }
    return seconds;
  }
  void wait_for_device() override { device_.synchronize(); }

 private:
  using Pair = std::pair<CudaEvent, CudaEvent>;

  std::unique_ptr<Pair> take_pair() {
    if (free_.empty()) return std::make_unique<Pair>();
    auto pair = std::move(free_.back());
    free_.pop_back();
    return pair;
  }

  CudaDevice& device_;
  std::unique_ptr<Pair> open_;
  std::deque<std::unique_ptr<Pair>> in_flight_;
  std::vector<std::unique_ptr<Pair>> free_;
};

}  // namespace

template <>
std::unique_ptr<DeviceWaitTimer> make_device_wait_timer_on<DeviceType::Cuda>(Device& device) {
  return std::make_unique<CudaWaitTimer>(static_cast<CudaDevice&>(device));
}

}  // namespace mcpp
