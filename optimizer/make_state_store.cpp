#include "optimizer/make_state_store.h"

#include <algorithm>
#include <thread>

#include "nn/offload/file_states.h"
#include "nn/offload/host_states.h"
#include "nn/offload/tiered_states.h"
#include "tensor/ops/quantize.h"

namespace mcpp {
namespace {

/// As many threads as the weights' device has: where that is a GPU, the host has nothing else to compute.
int host_threads(Device& device) {
  const auto* cpu = dynamic_cast<CpuDevice*>(&device);
  return cpu ? cpu->threads() : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace

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
