// Measurement of disk bandwidth for the planner.
#pragma once
#include "base/file.h"
#include "megatron_cpp/bench/calibrate_kernels.h"

namespace mcpp {

/// Returns the bytes per second of each rank if all write and read back `bytes` in files of `folder`, bypassing the
/// page cache if the file system supports that. Collective. Throws BadInput, naming `key`, if the folder is unsuitable
/// (ScratchFile).
double disk_bandwidth(CalibrationClock& clock, const Path& folder, i64 bytes, std::string_view key);

}  // namespace mcpp
