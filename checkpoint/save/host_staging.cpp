#include "checkpoint/save/host_staging.h"

#include "tensor/transfer.h"

namespace mcpp {

void HostStaging::begin(std::span<const NamedShard> shards) {
  specs_ = specs_of(shards);
  originals_.clear();
  snapshots_.clear();  // all, before the first new one
  for (const NamedShard& shard : shards) originals_.push_back(shard.data);
  copies_.resize(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].stored)
      snapshots_[i] = shards[i].stored->snapshot();
    else if (!shards[i].is_in_host_memory())
      copy(i);
  }
}

Tensor HostStaging::data(std::size_t index) {
  const auto snapshot = snapshots_.find(index);
  if (snapshot == snapshots_.end()) return copies_[index];
  Tensor copy = Tensor::empty({specs_[index].numel()}, specs_[index].dtype, host_, MemoryClass::Other);
  snapshot->second->read(copy);
  return copy;
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
  const NamedShard& shard = shards_[index];
  if (shard.is_in_host_memory()) return shard.data;
  Tensor copy = Tensor::empty({shard.numel()}, shard.dtype(), host_, MemoryClass::Other);
  shard.read(copy);
  return copy;
}

}  // namespace mcpp
