#include "optimizer/make_state_store.h"

#include "nn/offload/file_states.h"
#include "nn/offload/host_memory.h"
#include "nn/offload/host_states.h"
#include "nn/offload/tiered_states.h"
#include "tensor/ops/narrow/quantize.h"

namespace mcpp {

std::unique_ptr<StateStore> make_state_store(const OptimizerConfig& config, Device& device, bool takes_snapshots) {
  std::unique_ptr<StateStore> near = make_resident_states(device), far;
  const i64 longest = config.offload_segment_size / kQuantizedBlock * kQuantizedBlock;  // whole blocks
  switch (config.offload) {
    case OffloadTier::Device:
      return near;
    case OffloadTier::Host:
      far = make_host_states(host_threads(device), longest);
      break;
    case OffloadTier::File:
      far = make_file_states({.folder = config.offload_folder,
                              .key = "optimizer.offload_folder",
                              .longest_segment = longest,
                              .takes_snapshots = takes_snapshots},
                             device, host_threads(device));
      break;
  }
  return make_tiered_states(std::move(near), std::move(far), config.offload_fraction);
}

}  // namespace mcpp
