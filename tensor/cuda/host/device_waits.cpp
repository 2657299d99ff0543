#include "tensor/host/device_waits.h"

#include <deque>
#include <utility>
#include <vector>

#include "tensor/cuda/device.h"
#include "tensor/cuda/event.h"

namespace mcpp {
namespace {

/// Records two events on the compute stream around each wait.
class CudaWaits final : public DeviceWaits {
 public:
  explicit CudaWaits(CudaDevice& device) : device_(device) {}

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
      under_way_.push_back(std::move(open_));
    } catch (const Error&) {
      open_.reset();
    }
  }
  double take_seconds() noexcept override {
    double seconds = 0;
    try {
      while (!under_way_.empty() && under_way_.front()->second.happened()) {
        const Pair& pair = *under_way_.front();
        seconds += static_cast<double>(pair.second.milliseconds_since(pair.first)) / 1e3;
        free_.push_back(std::move(under_way_.front()));
        under_way_.pop_front();
      }
    } catch (const Error&) {
      under_way_.clear();
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
  std::deque<std::unique_ptr<Pair>> under_way_;
  std::vector<std::unique_ptr<Pair>> free_;
};

}  // namespace

template <>
std::unique_ptr<DeviceWaits> make_device_waits_on<DeviceType::Cuda>(Device& device) {
  return std::make_unique<CudaWaits>(static_cast<CudaDevice&>(device));
}

}  // namespace mcpp
