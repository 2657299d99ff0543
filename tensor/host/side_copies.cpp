#include "tensor/host/side_copies.h"

#include "tensor/on_device.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Implementation for the CPU: copies synchronously.
class ImmediateCopies final : public SideCopies {
 public:
  explicit ImmediateCopies(Device& device) : SideCopies(device) {}
  SideCopy to_host(const Tensor& from, const Tensor& to) override {
    read_bytes(from, to.raw());
    return {};
  }
  SideCopy to_device(const Tensor& from, const Tensor& to) override {
    Tensor target = to;
    write_bytes(from.raw(), target);
    return {};
  }
  bool are_immediate() const override { return true; }
  std::shared_ptr<void> pin(void*, i64) override { return nullptr; }
};

}  // namespace

template <>
std::unique_ptr<SideCopies> make_side_copies_on<DeviceType::Cpu>(Device& device) {
  return std::make_unique<ImmediateCopies>(device);
}

std::unique_ptr<SideCopies> make_side_copies(Device& device) {
  return on_device(device.type(), [&]<DeviceType D>() { return make_side_copies_on<D>(device); });
}

}  // namespace mcpp
