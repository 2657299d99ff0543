#include "optimizer/remote_part.h"

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

RemoteParts::Travelling RemoteParts::start(const Tensor& here) {
  Travelling t{.here = here, .room = rooms_.take(here.shape(), here.dtype()), .copy = {}};
  t.copy = copies_.to_host(here, *t.room);
  return t;
}

void RemoteParts::expect(const std::vector<Tensor>& tensors) {
  expected_.clear();
  for (const Tensor& t : tensors) {
    if (copies_.are_for(t)) expected_.push_back(start(t));
  }
}

Tensor RemoteParts::brought(const Tensor& here, Device& device) {
  if (!here.defined() || &here.device() == &device) return here;
  if (!copies_.are_for(here)) {
    const Tensor there = Tensor::empty(here.shape(), here.dtype(), device, MemoryClass::Workspace);
    if (!copies_.are_for(there)) return copy_to(device, here);
    copies_.to_device(here, there).hold_ops();
    return there;
  }
  const auto found =
      std::ranges::find_if(expected_, [&](const Travelling& t) { return t.room && is_same(t.here, here); });
  Travelling& t = at_hand_.emplace_back(found == expected_.end() ? start(here) : std::exchange(*found, Travelling()));
  t.copy.wait();
  return *t.room;
}

UpdatePart RemoteParts::bring(const UpdatePart& here, Device& device) {
  at_hand_.clear();
  return {.weights = brought(here.weights, device),
          .states = here.states,
          .grads = brought(here.grads, device),
          .model = brought(here.model, device)};
}

void RemoteParts::give_back(const Tensor& there, const Tensor& here) {
  if (!here.defined() || &there.device() == &here.device()) return;
  if (copies_.are_for(there)) {
    to_host_.push_back(copies_.to_host(there, here));
    return;
  }
  const auto room = std::ranges::find_if(at_hand_, [&](const Travelling& t) { return is_same(t.here, here); });
  if (room == at_hand_.end()) {
    Tensor to = here;
    return copy_over(there, to);
  }
  room->copy = copies_.to_device(there, here);
  returning_.push_back(std::move(*room));
  at_hand_.erase(room);
  if (returning_.size() <= kReturning) return;
  returning_.front().copy.wait();  // then its buffer may be reused
  returning_.pop_front();
}

void RemoteParts::finish_returns() {
  for (SideCopy& copy : to_host_) copy.wait();
  for (Travelling& t : returning_) t.copy.wait();
  to_host_.clear();
  returning_.clear();
}

void RemoteParts::give_back_weights(const UpdatePart& there, const UpdatePart& here) {
  give_back(there.weights, here.weights);
  give_back(there.model, here.model);
}

void RemoteParts::give_back_gradient(const UpdatePart& there, const UpdatePart& here) {
  give_back(there.grads, here.grads);
}

}  // namespace mcpp
