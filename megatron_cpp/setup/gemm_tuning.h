// The file of algorithms that matrix products run by on GPUs, over all ranks of a run.
#pragma once
#include "comm/communicator.h"
#include "megatron_cpp/config/sections/device_config.h"

namespace mcpp {

/// Rank 0 reads device.gemm_tuning_file; every rank uses what it says. Does nothing without such a file. Called by all
/// ranks. BadInput on all of them when the file is broken, when it is missing and would not be made, or cannot be made.
void load_gemm_choices(const DeviceConfig& config, Device& device, Communicator& ranks);

/// With gemm_tuning = "time": what ranks found since, all use from now on (of several choices for a product that of the
/// lowest rank), and rank 0 writes it to the file. Before a checkpoint, therefore: who resumes from it computes alike.
/// Called by all ranks.
void share_gemm_choices(const DeviceConfig& config, Device& device, Communicator& ranks);

}  // namespace mcpp
