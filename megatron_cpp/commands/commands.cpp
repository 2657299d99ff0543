#include "megatron_cpp/commands/commands.h"

#include <array>

#include "base/number_format.h"
#include "base/program/standard_streams.h"
#include "base/strings.h"
#include "megatron_cpp/bench/bench_commands.h"
#include "megatron_cpp/commands/plan/plan_options.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/version.h"

namespace mcpp {
namespace {

constexpr std::array kCommands{
    Command{"tokenizer", "train a tokenizer, encode and decode", tokenizer_command},
    Command{"preprocess", "convert text or JSONL to token files (.bin/.idx), on any number of ranks", nullptr,
            preprocess_command},
    Command{"data", "verify and merge token files, show what a sample or an iteration reads", data_command},
    Command{"pretrain", "train a model, on any number of ranks", nullptr, pretrain_command},
    Command{"evaluate", "measure a checkpoint: perplexity of texts, accuracy on tasks; on any number of ranks", nullptr,
            evaluate_command},
    Command{"generate", "sample text from a checkpoint, on any number of ranks", nullptr, generate_command},
    Command{"report", "write a page with curves, memory, events and configurations of runs", report_command},
    Command{"checkpoint", "list, verify and compare checkpoints; import from and export to Hugging Face",
            checkpoint_command},
    Command{"config", "check a configuration and print it with all defaults", config_command},
    Command{"completion", "print a completion script for bash or zsh", completion_command},
    Command{"schedule", "draw and time a pipeline schedule, or compare all of them", schedule_command},
    Command{"plan", "find the fastest layouts of a model on a cluster, without access to the cluster", nullptr,
            plan_command},
    Command{"bench", "time GEMMs, operations, training steps or communication; compare losses of variants", nullptr,
            bench_command},
};

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 internal error, 2 bad input, 12 out of memory, 17 training failed (loss or gradient not\n"
    "finite), 75 a peer was lost (restart from the last checkpoint), 85 stopped by a signal after saving (requeue).\n";

/// Runs the command of `table` that args[0] names; messages call it `kind`.
ExitCode dispatch(std::span<const Command> table, const std::string& kind, Arguments args, Log& log,
                  const World& world) {
  std::vector<std::string> names;
  for (const Command& command : table) {
    names.emplace_back(command.name);
    if (command.name != args[0]) continue;
    if (command.run_on_ranks) return command.run_on_ranks(args.subspan(1), log, world);
    check_input(world.ranks.size() == 1, "megatron_cpp ", args[0], " runs in one process, not on ", world.ranks.size(),
                " ranks; start it without mpirun or srun");
    return command.run(args.subspan(1), log);
  }
  const std::string nearest = nearest_name(args[0], names);
  fail(ExitCode::BadInput, "unknown ", kind, " \"", args[0], "\"; ",
       nearest.empty() ? str("available are ", join(names, ", ")) : str("did you mean ", nearest, "?"));
}

/// Returns the names that may come next, for completion.
std::string list_names(std::span<const Command> table) {
  std::string text;
  for (const Command& command : table) text += str(command.name, "\t", command.summary, "\n");
  return text;
}

/// Returns true for commands that work on files, possibly for days: an error of standard output must not end them.
bool ignores_stdout_errors(std::string_view command) {
  return command == "pretrain" || command == "preprocess";
}

bool is_list_request(Arguments args) {
  return args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help";
}

std::string format_commands(std::span<const Command> table) {
  std::string text;
  for (const Command& command : table) text += str("\n  ", pad_right(command.name, 12), command.summary);
  return text;
}

ExitCode run_command(Arguments args, Log& log, const World& world) {
  if (is_list_request(args)) {
    log.info(program_help());
    return args.empty() ? ExitCode::BadInput : ExitCode::Done;
  }
  if (is_options_request(args.first(1))) {
    log.info(list_names(kCommands));
    return ExitCode::Done;
  }
  if (args[0] == "--version") {
    log.info(version_text());
    return ExitCode::Done;
  }
  return dispatch(kCommands, "command", args, log, world);
}

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

std::string program_help() {
  std::string text =
      "usage: megatron_cpp COMMAND [arguments]\n\nPretrains language models in the style of Megatron-LM.\n";
  return text + format_commands(kCommands) +
         "\n\nmegatron_cpp COMMAND --help explains a command; megatron_cpp --version lists the libraries used.\n" +
         kExitCodes;
}

ExitCode run_program(Arguments args, Log& log, const World& world) {
  // A rank with a different command would never reach the collectives in which the other ranks wait.
  check_identical_on_ranks("command", args.empty() ? "" : args[0], world.ranks,
                           "start all ranks with the same arguments");
  const ExitCode code = run_command(args, log, world);
  if (world.ranks.rank() == 0 && code == ExitCode::Done && !ignores_stdout_errors(args[0])) check_standard_output();
  return code;
}

ExitCode run_subcommand(const std::string& name, std::span<const Command> table, Arguments args, Log& log) {
  if (!args.empty() && is_options_request(args.first(1))) {
    log.info(list_names(table));
    return ExitCode::Done;
  }
  if (!is_list_request(args)) {
    const std::unique_ptr<Communicator> self = make_self_communicator();
    return dispatch(table, name + " command", args, log, {.ranks = *self});
  }
  log.info(str("usage: megatron_cpp ", name, " COMMAND [arguments]\n", format_commands(table), "\n\nmegatron_cpp ",
               name, " COMMAND --help explains a command.\n"));
  return args.empty() ? ExitCode::BadInput : ExitCode::Done;
}

}  // namespace mcpp
