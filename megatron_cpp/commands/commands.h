// Subcommands of the program. Each is one function in commands/<name>.cpp, declared here or in the header of its
// folder, and one line in the table in commands.cpp.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/setup/initialize.h"

namespace mcpp {

/// Subcommand that runs either in one process or on all ranks of a world.
struct Command {
  std::string_view name;
  std::string_view summary;  ///< one line for megatron_cpp --help
  ExitCode (*run)(Arguments args, Log& log) = nullptr;
  ExitCode (*run_on_ranks)(Arguments args, Log& log, const World& world) = nullptr;
};

std::span<const Command> commands();

/// Runs the subcommand named by args[0] with the remaining arguments; handles --help and --version. Throws BadInput if
/// the subcommand is unknown or does not support several ranks. Collective over `world`.
ExitCode run_program(Arguments args, Log& log, const World& world);

/// Runs a nested subcommand, such as `tokenizer train`, in one process.
ExitCode run_subcommand(const std::string& name, std::span<const Command> table, Arguments args, Log& log);

/// Returns the text of --help: all subcommands and exit codes.
std::string program_help();

ExitCode checkpoint_command(Arguments args, Log& log);
ExitCode completion_command(Arguments args, Log& log);
ExitCode config_command(Arguments args, Log& log);
ExitCode data_command(Arguments args, Log& log);
ExitCode evaluate_command(Arguments args, Log& log, const World& world);
ExitCode generate_command(Arguments args, Log& log, const World& world);
ExitCode preprocess_command(Arguments args, Log& log, const World& world);
ExitCode pretrain_command(Arguments args, Log& log, const World& world);
ExitCode report_command(Arguments args, Log& log);
ExitCode schedule_command(Arguments args, Log& log);
ExitCode tokenizer_command(Arguments args, Log& log);

}  // namespace mcpp
