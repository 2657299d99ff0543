// Command megatron_cpp checkpoint export-dcp.
#pragma once
#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"

namespace mcpp {

/// Writes a checkpoint as a distributed checkpoint of PyTorch.
ExitCode export_dcp(Arguments args, Log& log);

}  // namespace mcpp
