// Command megatron_cpp bench and its subcommands.
#pragma once
#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/setup/world.h"

namespace mcpp {

ExitCode bench_command(Arguments args, Log& log, const World& world);
ExitCode bench_attention_command(Arguments args, Log& log, const World& world);
ExitCode bench_comm_command(Arguments args, Log& log, const World& world);
ExitCode bench_checkpoint_command(Arguments args, Log& log, const World& world);
ExitCode bench_groups_command(Arguments args, Log& log, const World& world);

}  // namespace mcpp
