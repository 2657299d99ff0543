// Command megatron_cpp checkpoint import.
#pragma once
#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"

namespace mcpp {

/// Saves the state of a training run of another program as a checkpoint, from which pretrain continues the run.
ExitCode import_checkpoint(Arguments args, Log& log);

}  // namespace mcpp
