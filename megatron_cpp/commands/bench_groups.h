// The subcommand of bench that is about the groups of a layout.
#pragma once
#include "megatron_cpp/commands/commands.h"

namespace mcpp {

ExitCode bench_groups_command(Arguments args, Log& log, const World& world);  ///< bench groups

}  // namespace mcpp
