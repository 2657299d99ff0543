// What a disk takes and gives back, for the planner.
#pragma once
#include "base/file.h"
#include "megatron_cpp/bench/calibrate_kernels.h"

namespace mcpp {

/// Bytes a second of each rank, when all write `bytes` to a file of theirs in `folder` and read them again, past the
/// system's page cache where the file system can. BadInput, which names `key`, when the folder is no place for such
/// files (ScratchFile).
double disk_bandwidth(CalibrationClock& clock, const Path& folder, i64 bytes, std::string_view key);

}  // namespace mcpp
