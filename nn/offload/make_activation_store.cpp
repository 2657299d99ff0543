#include "nn/offload/file_activations.h"
#include "nn/offload/host_activations.h"

namespace mcpp {

std::unique_ptr<ActivationStore> make_activation_store(const ActivationOffload& offload, Device& device) {
  switch (offload.tier) {
    case OffloadTier::Device:
      return nullptr;
    case OffloadTier::Host:
      return std::make_unique<HostActivations>(make_async_copy_engine(device));
    case OffloadTier::File:
      return std::make_unique<FileActivations>(offload, device, make_transfer_queue(), make_async_copy_engine(device));
  }
  fail(ExitCode::Internal, "unknown place for activations");
}

}  // namespace mcpp
