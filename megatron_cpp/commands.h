// The subcommands of the program. Each is one function in commands/<name>.cpp, declared here, with one line in the
// table of commands.cpp.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/log.h"

namespace mcpp {

using Arguments = std::span<const std::string>;  ///< those after the subcommand's name

struct Command {
  std::string_view name;
  std::string_view summary;  ///< one line for megatron_cpp --help
  ExitCode (*run)(Arguments args, Log& log);
};

std::span<const Command> commands();

/// Runs the subcommand that args[0] names, with the arguments after it; answers --help and --version.
/// Throws BadInput for an unknown one.
ExitCode run_program(Arguments args, Log& log);

/// The text of --help: all subcommands and exit codes.
std::string program_help();

ExitCode config_command(Arguments args, Log& log);

}  // namespace mcpp
