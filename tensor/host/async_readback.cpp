#include "tensor/host/async_readback.h"

#include "tensor/transfer.h"
#include "tensor/with_cuda.h"

namespace mcpp {
namespace {

/// Implementation for the CPU, whose ops are done when they return.
class SynchronousReadback final : public AsyncReadback {
 public:
  explicit SynchronousReadback(i64 count) : values_(static_cast<std::size_t>(count)) {}

  void start(const Tensor& from) override {
    MCPP_CHECK(from.numel() == static_cast<i64>(values_.size()), "a copy of ", values_.size(), " numbers, not ",
               from.shape());
    values_ = read_values<double>(from);
  }
  std::vector<double> values() override { return values_; }

 private:
  std::vector<double> values_;
};

}  // namespace

template <>
std::unique_ptr<AsyncReadback> make_async_readback_on<DeviceType::Cpu>(Device&, i64 count) {
  return std::make_unique<SynchronousReadback>(count);
}

std::unique_ptr<AsyncReadback> make_async_readback(Device& device, i64 count) {
  if constexpr (kWithCuda) {
    if (device.type() == DeviceType::Cuda) return make_async_readback_on<DeviceType::Cuda>(device, count);
  }
  return make_async_readback_on<DeviceType::Cpu>(device, count);
}

}  // namespace mcpp
