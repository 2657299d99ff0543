#include "optimizer/remote_part.h"

#include "nn/offload/host_memory.h"

namespace mcpp {
namespace {

void copy_back(const Tensor& there, const Tensor& here) {
  if (!here.defined() || &there.device() == &here.device()) return;
  Tensor to = here;
  copy_over(there, to);
}

}  // namespace

Tensor copy_to(Device& device, const Tensor& values) {
  if (!values.defined() || &values.device() == &device) return values;
  Tensor copy = Tensor::empty(values.shape(), values.dtype(), device, MemoryClass::Workspace);
  copy_over(values, copy);
  return copy;
}

RemotePart::RemotePart(const UpdatePart& here, Device& device)
    : here_(here),
      there_{.weights = copy_to(device, here.weights),
             .states = here.states,
             .grads = copy_to(device, here.grads),
             .model = copy_to(device, here.model)} {}

void RemotePart::give_back_weights() {
  copy_back(there_.weights, here_.weights);
  copy_back(there_.model, here_.model);
}

void RemotePart::give_back_gradient() {
  copy_back(there_.grads, here_.grads);
}

}  // namespace mcpp
