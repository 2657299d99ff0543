// Device and communicator of a rank of layout tests: a CPU, or a GPU per rank and NCCL.
#pragma once
#include <functional>
#include <memory>

#include "base/types.h"
#include "comm/communicator.h"
#include "tensor/device.h"

namespace mcpp::test {

/// Device and communicator of a rank.
struct RankPlace {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator>
      world;  ///< spans all ranks, for tensors of the device; if null, the ranks' own group is used
};
using PlaceOfRank = std::function<RankPlace(Communicator& ranks)>;

inline RankPlace cpu_place(Communicator&) {
  return {std::make_unique<CpuDevice>(), nullptr};
}

/// Returns a GPU of the rank's own, and a group that transfers its tensors over NCCL.
RankPlace nccl_place(Communicator& ranks);

/// Returns true if MCPP_TEST_DEVICE is "cuda" in the environment: layout tests then run on a GPU per rank.
bool runs_on_gpus();
/// Returns nccl_place() if runs_on_gpus(), otherwise cpu_place().
RankPlace default_place(Communicator& ranks);

/// Returns the number of steps that layout tests may train, from MCPP_TEST_MAX_STEPS in the environment; simulated GPUs
/// are slow.
i64 max_steps();

}  // namespace mcpp::test
