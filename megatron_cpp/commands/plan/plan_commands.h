// Command megatron_cpp plan; its subcommand `plan calibrate` runs on several ranks.
#pragma once
#include <string>

#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/setup/world.h"

namespace mcpp {

ExitCode plan_command(Arguments args, Log& log, const World& world);
ExitCode plan_calibrate_command(Arguments args, Log& log, const World& world);
/// Returns the reason why `file`, the value of an option, cannot be written; empty if it can be written.
std::string output_problem(const std::string& option, const std::string& file);

}  // namespace mcpp
