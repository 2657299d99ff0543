// Synchronization of GEMM algorithm choices over all ranks of a run, and the file that stores them.
#pragma once
#include "comm/communicator.h"
#include "megatron_cpp/config/sections/device_config.h"

namespace mcpp {

/// Reads device.gemm_tuning_file on rank 0 and applies it on all ranks. Collective. Does nothing if no file is
/// configured. Throws BadInput on all ranks if the file is damaged, or if it is missing and will not or cannot be
/// created.
void load_gemm_algos(const DeviceConfig& config, Device& device, Communicator& ranks);

/// Distributes the choices that ranks made since the last call to all ranks, if gemm_tuning = "time"; of conflicting
/// choices that of the lowest rank is used. Rank 0 writes them to the file. Call it before each checkpoint, so that a
/// resumed run uses the same algorithms. Collective.
void sync_gemm_algos(const DeviceConfig& config, Device& device, Communicator& ranks);

}  // namespace mcpp
