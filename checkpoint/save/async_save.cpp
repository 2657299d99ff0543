#include "checkpoint/save/async_save.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Touches every page of the tensor, in parts, until stopped.
void fault_in_pages(const Tensor& tensor, const std::stop_token& stop) {
  constexpr i64 kPart = i64{4} << 20;
  auto* bytes = static_cast<std::byte*>(tensor.raw());
  for (i64 at = 0; at < tensor.bytes() && !stop.stop_requested(); at += kPart)
    std::memset(bytes + at, 0, static_cast<std::size_t>(std::min(kPart, tensor.bytes() - at)));
}

}  // namespace

void HostStaging::prepare(std::span<const NamedShard> shards) {
  std::vector<Size> sizes;
  for (const NamedShard& shard : shards)
    sizes.push_back({shard.dtype(), shard.stored.defined() ? 0 : shard.numel(), uses_copy_engine(shard.data)});
  preparing_ = std::jthread([this, sizes](const std::stop_token& stop) { allocate_buffers(sizes, stop); });
}

PinnedTensor HostStaging::allocate(const Size& size) {
  if (size.uses_copy_engine) return pinned_tensor({size.numel}, size.dtype, host_, MemoryClass::Other, *copy_engine_);
  return {.tensor = Tensor::empty({size.numel}, size.dtype, host_, MemoryClass::Other)};
}

void HostStaging::allocate_buffers(std::span<const Size> sizes, const std::stop_token& stop) try {
  copies_.resize(sizes.size());
  for (std::size_t i = 0; i < sizes.size() && !stop.stop_requested(); ++i) {
    if (sizes[i].numel == 0) continue;
    copies_[i] = allocate(sizes[i]);
    fault_in_pages(copies_[i].tensor, stop);
  }
} catch (const Error&) {  // not enough memory: begin() or copy_rest() try again and report it
}

void HostStaging::begin(std::span<const NamedShard> shards) {
  if (preparing_.joinable()) preparing_.join();  // pages not yet touched will be touched by the copies
  finish_copies();
  specs_ = specs_of(shards);
  originals_.clear();
  snapshots_.clear();  // before any new one is taken
  for (const NamedShard& shard : shards) originals_.push_back(shard.data);
  copies_.resize(shards.size());
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].stored.defined())
      snapshots_[i] = shards[i].stored.snapshot();
    else if (uses_copy_engine(shards[i].data))
      start_copy(i);
    else if (!shards[i].is_in_host_memory())
      copy(i);
  }
}

Tensor HostStaging::data(std::size_t index) {
  const auto snapshot = snapshots_.find(index);
  if (snapshot == snapshots_.end()) return copies_[index].tensor;
  host_.trim();  // cached blocks of the previous copies have other sizes
  Tensor copy = Tensor::empty({specs_[index].numel()}, specs_[index].dtype, host_, MemoryClass::Other);
  snapshot->second.read(copy);
  return copy;
}

void HostStaging::copy_rest(const std::stop_token& stop) {
  const auto check_not_canceled = [&] { check_input(!stop.stop_requested(), "the save was canceled"); };
  for (std::size_t i = 0; i < originals_.size(); ++i) {
    check_not_canceled();
    if (originals_[i].defined()) copy(i);
  }
  check_not_canceled();
  finish_copies();
}

void HostStaging::start_copy(std::size_t index) {
  const Tensor from = std::exchange(originals_[index], Tensor());
  in_flight_.push_back(copy_engine_->to_host(from, ensure_buffer(from, index)));
}

void HostStaging::finish_copies() {
  for (AsyncCopy& copy : in_flight_) copy.wait();
  in_flight_.clear();
}

const Tensor& HostStaging::ensure_buffer(const Tensor& from, std::size_t index) {
  PinnedTensor& to = copies_[index];
  if (!to.tensor.defined() || to.tensor.dtype() != from.dtype() || to.tensor.numel() != from.numel()) {
    to.pin = nullptr;
    to.tensor = Tensor();  // reset first, so that the memory can be reused
    to = allocate({from.dtype(), from.numel(), uses_copy_engine(from)});
  }
  return to.tensor;
}

void HostStaging::copy(std::size_t index) {
  const Tensor from = std::exchange(originals_[index], Tensor());
  read_bytes(from, ensure_buffer(from, index).raw());
}

Tensor HostCopies::data(std::size_t index) {
  const NamedShard& shard = shards_[index];
  if (shard.is_in_host_memory()) return shard.data;
  Tensor copy = Tensor::empty({shard.numel()}, shard.dtype(), host_, MemoryClass::Other);
  shard.read(copy);
  return copy;
}

Tensor AsyncSave::Source::data(std::size_t index) {
  check_input(!stop_.stop_requested(), "the save was canceled");
  return staging_.data(index);
}

AsyncSave::AsyncSave(SaveTarget target, RunState state, HostStaging& staging, Communicator& world, StoredRef<Log> log,
                     StoredRef<FileSystem> files)
    : save_(std::move(target), std::move(state), world, log, files),
      source_(staging, stop_.get_token()),
      work_(std::async(std::launch::async, [this] { copy_and_write(); })) {}

AsyncSave::~AsyncSave() {
  stop_.request_stop();
}

void AsyncSave::copy_and_write() {
  save_.write(source_, [this] {
    source_.copy();
    notify_copied();
  });
  notify_copied();  // also after a failed copy
}

void AsyncSave::notify_copied() {
  is_copied_ = true;
  is_copied_.notify_all();
}

bool AsyncSave::is_idle() const {
  return work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

bool AsyncSave::advance() {
  work_.wait();
  if (is_committing_) {
    save_.finish();
    return true;
  }
  save_.gather();
  is_committing_ = true;
  work_ = std::async(std::launch::async, [this] { save_.commit(); });
  return false;
}

}  // namespace mcpp
