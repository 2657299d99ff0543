#include "optimizer/make_state_store.h"

#include "nn/offload/file_states.h"
#include "nn/offload/host_memory.h"
#include "nn/offload/state_store.h"
#include "tensor/ops/low_precision/quantize.h"

namespace mcpp {

std::unique_ptr<StateStore> make_state_store(const OptimizerConfig& config, Device& device, bool supports_snapshots) {
  std::unique_ptr<StateStore> device_store = make_resident_states(device), offload_store;
  const i64 longest = config.offload_segment_size / kQuantizedBlock * kQuantizedBlock;  // a multiple of the block size
  switch (config.offload) {
    case OffloadTier::Device:
      return device_store;
    case OffloadTier::Host:
      offload_store = make_host_states(host_threads(device), longest);
      break;
    case OffloadTier::File:
      offload_store = make_file_states({.folder = config.offload_folder,
                                        .key = "optimizer.offload_folder",
                                        .longest_segment = longest,
                                        .supports_snapshots = supports_snapshots},
                                       device, host_threads(device));
      break;
  }
  return make_tiered_states(std::move(device_store), std::move(offload_store), config.offload_fraction);
}

}  // namespace mcpp
