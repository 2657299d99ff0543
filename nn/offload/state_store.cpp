#include "nn/offload/state_store.h"

#include <utility>

#include "base/number_format.h"
#include "nn/offload/file_states.h"
#include "nn/offload/host_memory.h"
#include "tensor/ops/ops.h"

namespace mcpp {

StateStore::StateStore(Device& device, StateStoreOptions options, std::unique_ptr<TransferQueue> queue)
    : device_(device), options_(std::move(options)) {
  if (options_.tier == OffloadTier::Device) return;
  const bool is_on_disk = options_.tier == OffloadTier::File;
  if (!options_.host && is_on_disk) options_.host = host_device_for(device, options_.host_threads);
  if (!options_.host) options_.host = std::make_shared<CpuDevice>(CpuOptions{.threads = options_.host_threads});
  if (is_on_disk) disk_ = std::make_unique<FileStates>(options_, queue ? std::move(queue) : make_transfer_queue());
}

StateStore::~StateStore() = default;

void StateStore::add(const std::vector<VectorSpec>& vectors) {
  double bytes = 0;
  for (const VectorSpec& vector : vectors) bytes += static_cast<double>(vector.bytes());
  bytes_ += bytes;
  const bool is_offloaded =
      options_.tier != OffloadTier::Device && offloaded_bytes_ + bytes / 2 <= options_.offloaded_fraction * bytes_;
  if (is_offloaded) offloaded_bytes_ += bytes;
  Segment& segment = segments_.emplace_back(Segment{is_offloaded, {}, num_on_disk_});
  if (is_offloaded && disk_) {
    disk_->add(vectors);
    ++num_on_disk_;
    return;
  }
  for (const VectorSpec& vector : vectors) segment.vectors.push_back(allocate(vector, is_offloaded));
}

PinnedTensor StateStore::allocate(const VectorSpec& vector, bool is_offloaded) {
  if (is_offloaded && options_.copies) {
    PinnedTensor pinned =
        pinned_tensor({vector.count}, vector.dtype, *options_.host, options_.memory_class, *options_.copies);
    ops::fill_zero(pinned.tensor);
    return pinned;
  }
  Device& device = is_offloaded ? *options_.host : device_;
  return {.tensor = Tensor::zeros({vector.count}, vector.dtype, device, options_.memory_class)};
}

void StateStore::reserve() {
  if (disk_) disk_->reserve();
}

void StateStore::prefetch(const std::vector<std::size_t>& order) {
  if (!disk_) return;
  std::vector<std::size_t> on_disk;
  for (const std::size_t segment : order) {
    if (!is_resident(segment)) on_disk.push_back(segments_[segment].on_disk);
  }
  disk_->prefetch(on_disk);
}

std::vector<Tensor> StateStore::fetch(std::size_t segment) {
  if (disk_ && !is_resident(segment)) return disk_->fetch(segments_[segment].on_disk);
  std::vector<Tensor> vectors;
  for (const PinnedTensor& vector : segments_[segment].vectors) vectors.push_back(vector.tensor);
  return vectors;
}

void StateStore::drop(std::size_t segment) {
  if (disk_ && !is_resident(segment)) disk_->drop(segments_[segment].on_disk);
}

void StateStore::release_clean(std::size_t segment) {
  if (disk_ && !is_resident(segment)) disk_->release_clean(segments_[segment].on_disk);
}

StoredArray StateStore::stored(std::size_t segment, std::size_t vector) const {
  if (disk_ && !is_resident(segment)) return disk_->stored(segments_[segment].on_disk, vector);
  return StoredArray(segments_[segment].vectors[vector].tensor);
}

OffloadedBytes StateStore::offloaded_bytes() const {
  if (disk_) return {.on_disk = disk_->bytes()};
  return options_.host ? OffloadedBytes{.in_host = options_.host->memory().total.bytes} : OffloadedBytes();
}

std::string StateStore::describe() const {
  if (options_.tier == OffloadTier::Device) return "";
  const double share = bytes_ > 0 ? offloaded_bytes_ / bytes_ : 0;
  return str(fixed(100 * share, 0), "% ",
             disk_ ? disk_->describe()
                   : str("in host memory, ", human_bytes(static_cast<double>(options_.host->memory().total.bytes))));
}

}  // namespace mcpp
