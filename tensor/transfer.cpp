#include "tensor/transfer.h"

#include <cstring>

#include "tensor/on_device.h"

namespace mcpp {

template <>
void Transfer<DeviceType::Cpu>::read(const Tensor& from, void* to) {
  std::memcpy(to, from.raw(), static_cast<std::size_t>(from.bytes()));
}

template <>
void Transfer<DeviceType::Cpu>::write(const void* from, Tensor& to) {
  std::memcpy(to.raw(), from, static_cast<std::size_t>(to.bytes()));
}

void read_bytes(const Tensor& from, void* to) {
  if (from.numel() == 0) return;
  if (from.device().type() == DeviceType::Meta) std::memset(to, 0, static_cast<std::size_t>(from.bytes()));
  on_device(from.device().type(), [&]<DeviceType D>() { Transfer<D>::read(from, to); });
}

void write_bytes(const void* from, Tensor& to) {
  if (to.numel() == 0) return;
  on_device(to.device().type(), [&]<DeviceType D>() { Transfer<D>::write(from, to); });
}

}  // namespace mcpp
