// Command megatron_cpp checkpoint branch.
#pragma once
#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"

namespace mcpp {

/// Copies a checkpoint to a new folder, from which a second run continues.
ExitCode branch_checkpoint(Arguments args, Log& log);

}  // namespace mcpp
