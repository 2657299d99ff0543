#include "checkpoint/host_staging.h"

#include "tensor/transfer.h"

namespace mcpp {

void HostStaging::copy(std::span<const NamedShard> shards) {
  const ShardList list(shards);
  specs_.assign(list.shards().begin(), list.shards().end());
  copies_.resize(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const Tensor& from = shards[i].data;
    Tensor& to = copies_[i];
    if (!to.defined() || to.dtype() != from.dtype() || to.numel() != from.numel()) {
      to = Tensor::empty({from.numel()}, from.dtype(), host_, MemoryClass::Other);
    }
    read_bytes(from, to.raw());
  }
}

Tensor HostCopies::data(std::size_t index) {
  const Tensor from = list_.data(index);
  if (from.device().type() == DeviceType::Cpu) return from;
  const Tensor copy = Tensor::empty(from.shape(), from.dtype(), host_, MemoryClass::Other);
  read_bytes(from, copy.raw());
  return copy;
}

}  // namespace mcpp
