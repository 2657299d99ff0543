// Device and communicator of a rank of layout tests: a CPU, or a GPU per rank and NCCL.
#pragma once
#include <functional>
#include <memory>

#include "base/types.h"
#include "comm/communicator.h"
#include "tensor/device.h"

namespace mcpp::test {

/// Device and communicator of a rank.
struct RankDevices {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator>
      world;  ///< spans all ranks, for tensors of the device; if null, the ranks' own group is used
};
using RankDevicesFactory = std::function<RankDevices(Communicator& ranks)>;

inline RankDevices make_cpu_devices(Communicator&) {
  return {std::make_unique<CpuDevice>(), nullptr};
}

/// Returns a GPU of the rank's own, and a group that transfers its tensors over NCCL.
RankDevices make_nccl_devices(Communicator& ranks);

/// Returns true if MCPP_TEST_DEVICE is "cuda" in the environment: layout tests then run on a GPU per rank.
bool runs_on_gpus();
/// Returns make_nccl_devices() if runs_on_gpus(), otherwise make_cpu_devices().
RankDevices make_default_devices(Communicator& ranks);

/// Returns the number of steps that layout tests may train, from MCPP_TEST_MAX_STEPS in the environment; simulated GPUs
/// are slow.
i64 max_steps();

}  // namespace mcpp::test
