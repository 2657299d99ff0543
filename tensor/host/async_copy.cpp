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

}  // namespace mcpp
