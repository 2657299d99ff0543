// Command megatron_cpp checkpoint average.
#pragma once
#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"

namespace mcpp {

/// Averages the weights of several checkpoints and saves them as a checkpoint of weights.
ExitCode average_checkpoints(Arguments args, Log& log);

}  // namespace mcpp
