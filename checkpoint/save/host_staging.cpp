#include "checkpoint/save/host_staging.h"

#include "tensor/transfer.h"

namespace mcpp {

void HostStaging::begin(std::span<const NamedShard> shards) {
  const ShardList list(shards);
  specs_.assign(list.shards().begin(), list.shards().end());
  originals_.clear();
  for (const NamedShard& shard : shards) originals_.push_back(shard.data);
  copies_.resize(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (originals_[i].device().type() != DeviceType::Cpu) copy(i);
  }
}

void HostStaging::copy_rest(const std::stop_token& stop) {
  for (std::size_t i = 0; i < originals_.size(); ++i) {
    check_input(!stop.stop_requested(), "the save was given up");
    if (originals_[i].defined()) copy(i);
  }
}

void HostStaging::copy(std::size_t index) {
  const Tensor from = std::exchange(originals_[index], Tensor());
  Tensor& to = copies_[index];
  if (!to.defined() || to.dtype() != from.dtype() || to.numel() != from.numel()) {
    to = Tensor();  // first, so that its memory can be had again
    to = Tensor::empty({from.numel()}, from.dtype(), host_, MemoryClass::Other);
  }
  read_bytes(from, to.raw());
}

Tensor HostCopies::data(std::size_t index) {
  const Tensor from = list_.data(index);
  if (from.device().type() == DeviceType::Cpu) return from;
  const Tensor copy = Tensor::empty(from.shape(), from.dtype(), host_, MemoryClass::Other);
  read_bytes(from, copy.raw());
  return copy;
}

}  // namespace mcpp
