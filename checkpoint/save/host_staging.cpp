#include "checkpoint/save/host_staging.h"

#include <algorithm>
#include <cstring>

#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Writes every page of it, in parts, until it is told to stop.
void touch(const Tensor& tensor, const std::stop_token& stop) {
  constexpr i64 kPart = i64{4} << 20;
  auto* bytes = static_cast<std::byte*>(tensor.raw());
  for (i64 at = 0; at < tensor.bytes() && !stop.stop_requested(); at += kPart)
    std::memset(bytes + at, 0, static_cast<std::size_t>(std::min(kPart, tensor.bytes() - at)));
}

}  // namespace

void HostStaging::prepare(std::span<const NamedShard> shards) {
  std::vector<std::pair<DType, i64>> sizes;
  for (const NamedShard& shard : shards) sizes.emplace_back(shard.dtype(), shard.stored ? 0 : shard.numel());
  preparing_ = std::jthread([this, sizes](const std::stop_token& stop) { make_room(sizes, stop); });
}

void HostStaging::make_room(std::span<const std::pair<DType, i64>> sizes, const std::stop_token& stop) try {
  copies_.resize(sizes.size());
  for (std::size_t i = 0; i < sizes.size() && !stop.stop_requested(); ++i) {
    const auto [dtype, numel] = sizes[i];
    if (numel == 0) continue;
    copies_[i] = Tensor::empty({numel}, dtype, host_, MemoryClass::Other);
    touch(copies_[i], stop);
  }
} catch (const Error&) {  // no room now: begin() or copy_rest() ask again, and say so
}

void HostStaging::begin(std::span<const NamedShard> shards) {
  if (preparing_.joinable()) preparing_.join();  // what it still has to touch would be touched now
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
