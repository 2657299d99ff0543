#include "tensor/host/async_copy.h"

#include "tensor/on_device.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Implementation for the CPU: copies synchronously.
class SynchronousCopyEngine final : public AsyncCopyEngine {
 public:
  explicit SynchronousCopyEngine(Device& device) : AsyncCopyEngine(device) {}
  AsyncCopy to_host(const Tensor& from, const Tensor& to) override {
    read_bytes(from, to.raw());
    return {};
  }
  AsyncCopy to_device(const Tensor& from, const Tensor& to) override {
    Tensor target = to;
    write_bytes(from.raw(), target);
    return {};
  }
  bool is_synchronous() const override { return true; }
  std::shared_ptr<void> pin(void*, i64) override { return nullptr; }
};

}  // namespace

template <>
std::unique_ptr<AsyncCopyEngine> make_async_copy_engine_on<DeviceType::Cpu>(Device& device) {
  return std::make_unique<SynchronousCopyEngine>(device);
}

std::unique_ptr<AsyncCopyEngine> make_async_copy_engine(Device& device) {
  return on_device(device.type(), [&]<DeviceType D>() { return make_async_copy_engine_on<D>(device); });
}

namespace {

/// Implementation for the CPU, whose ops are done when they return.
class SynchronousReadback final : public AsyncReadback {
 public:
  explicit SynchronousReadback(i64 count) : values_(static_cast<std::size_t>(count)) {}

  void start(const Tensor& from) override {
    MCPP_CHECK(from.numel() == static_cast<i64>(values_.size()), "expected ", values_.size(), " values, not a tensor ",
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
