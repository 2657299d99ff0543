// Activations in the memory of the host.
#pragma once
#include "nn/offload/activation_store.h"

namespace mcpp {

/// On a device of their own, whose memory table has them apart: for activations on a GPU, and on machines without one
/// for those on another device of the same kind, where everything goes as it does with one.
class HostActivations final : public ActivationStore {
 public:
  std::unique_ptr<TensorsAway> put(std::vector<Tensor> tensors) override;
  std::string describe() const override;
  BytesAway peak() const override { return {.in_host = host_.memory().total.peak}; }

 private:
  CpuDevice host_;
};

}  // namespace mcpp
