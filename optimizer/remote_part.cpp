#include "optimizer/remote_part.h"

#include "base/check.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

void copy_back(const Tensor& there, const Tensor& here) {
  if (!here.defined() || &there.device() == &here.device()) return;
  Tensor to = here;
  write_bytes(there.raw(), to);
}

}  // namespace

Tensor copy_to(Device& host, const Tensor& values) {
  if (!values.defined() || &values.device() == &host) return values;
  MCPP_CHECK(host.type() == DeviceType::Cpu, "states are on a device that is neither the weights' nor the host");
  const Tensor copy = Tensor::empty(values.shape(), values.dtype(), host, MemoryClass::Workspace);
  read_bytes(values, copy.raw());
  return copy;
}

RemotePart::RemotePart(const UpdatePart& here, Device& host)
    : here_(here),
      there_{.weights = copy_to(host, here.weights),
             .states = here.states,
             .grads = copy_to(host, here.grads),
             .model = copy_to(host, here.model)} {}

void RemotePart::give_back_weights() {
  copy_back(there_.weights, here_.weights);
  copy_back(there_.model, here_.model);
}

void RemotePart::give_back_gradient() {
  copy_back(there_.grads, here_.grads);
}

}  // namespace mcpp
