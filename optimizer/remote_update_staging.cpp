#include "optimizer/remote_update_staging.h"

#include <algorithm>
#include <utility>

#include "nn/offload/host_memory.h"

namespace mcpp {
namespace {

bool is_same(const Tensor& a, const Tensor& b) {
  return a.raw() == b.raw() && a.numel() == b.numel() && a.dtype() == b.dtype();
}

}  // namespace

Tensor copy_to(Device& device, const Tensor& values) {
  if (!values.defined() || &values.device() == &device) return values;
  Tensor copy = Tensor::empty(values.shape(), values.dtype(), device, MemoryClass::Workspace);
  copy_over(values, copy);
  return copy;
}

RemoteUpdateStaging::PendingCopy RemoteUpdateStaging::start(const Tensor& original) {
  PendingCopy t{.original = original, .buffer = pinned_buffers_.take(original.shape(), original.dtype()), .copy = {}};
  t.copy = copies_.to_host(original, *t.buffer);
  return t;
}

void RemoteUpdateStaging::prefetch(const std::vector<Tensor>& tensors) {
  prefetched_.clear();
  for (const Tensor& t : tensors) {
    if (copies_.copies_asynchronously(t)) prefetched_.push_back(start(t));
  }
}

Tensor RemoteUpdateStaging::stage(const Tensor& original, Device& device) {
  if (!original.defined() || &original.device() == &device) return original;
  if (!copies_.copies_asynchronously(original)) {
    const Tensor staged = Tensor::empty(original.shape(), original.dtype(), device, MemoryClass::Workspace);
    if (!copies_.copies_asynchronously(staged)) return copy_to(device, original);
    copies_.to_device(original, staged).make_stream_wait();
    return staged;
  }
  const auto found = std::ranges::find_if(
      prefetched_, [&](const PendingCopy& t) { return t.buffer && is_same(t.original, original); });
  PendingCopy& t =
      staged_buffers_.emplace_back(found == prefetched_.end() ? start(original) : std::exchange(*found, PendingCopy()));
  t.copy.wait();
  return *t.buffer;
}

UpdatePart RemoteUpdateStaging::stage_on(const UpdatePart& original, Device& device) {
  staged_buffers_.clear();
  return {.weights = stage(original.weights, device),
          .states = original.states,
          .grads = stage(original.grads, device),
          .model = stage(original.model, device)};
}

void RemoteUpdateStaging::start_copy_back(const Tensor& staged, const Tensor& original) {
  if (!original.defined() || &staged.device() == &original.device()) return;
  if (copies_.copies_asynchronously(staged)) {
    to_host_.push_back(copies_.to_host(staged, original));
    return;
  }
  const auto buffer =
      std::ranges::find_if(staged_buffers_, [&](const PendingCopy& t) { return is_same(t.original, original); });
  if (buffer == staged_buffers_.end()) {
    Tensor to = original;
    return copy_over(staged, to);
  }
  buffer->copy = copies_.to_device(staged, original);
  copies_back_.push_back(std::move(*buffer));
  staged_buffers_.erase(buffer);
  if (copies_back_.size() <= kMaxCopiesBack) return;
  copies_back_.front().copy.wait();  // then its buffer may be reused
  copies_back_.pop_front();
}

void RemoteUpdateStaging::wait_for_copies_back() {
  for (AsyncCopy& copy : to_host_) copy.wait();
  for (PendingCopy& t : copies_back_) t.copy.wait();
  to_host_.clear();
  copies_back_.clear();
}

void RemoteUpdateStaging::copy_back_weights(const UpdatePart& staged, const UpdatePart& original) {
  start_copy_back(staged.weights, original.weights);
  start_copy_back(staged.model, original.model);
}

void RemoteUpdateStaging::copy_back_gradient(const UpdatePart& staged, const UpdatePart& original) {
  start_copy_back(staged.grads, original.grads);
}

}  // namespace mcpp
