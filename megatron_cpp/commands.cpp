#include "megatron_cpp/commands.h"

#include <array>

#include "base/number_text.h"
#include "base/strings.h"
#include "megatron_cpp/version.h"

namespace mcpp {
namespace {

constexpr std::array kCommands{
    Command{"config", "check a configuration and print it with all defaults", config_command},
};

constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 internal error, 2 bad input, 12 out of memory, 17 training failed (loss or gradient not\n"
    "finite), 75 a peer was lost (restart from the last checkpoint), 85 stopped by a signal after saving (requeue).\n";

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

std::string program_help() {
  std::string text =
      "usage: megatron_cpp COMMAND [arguments]\n\nPretrains language models in the style of Megatron-LM.\n";
  for (const Command& command : kCommands) text += str("\n  ", pad_right(command.name, 12), command.summary);
  return text +
         "\n\nmegatron_cpp COMMAND --help explains a command; megatron_cpp --version names the libraries used.\n" +
         kExitCodes;
}

ExitCode run_program(Arguments args, Log& log) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    log.info(program_help());
    return args.empty() ? ExitCode::BadInput : ExitCode::Done;
  }
  if (args[0] == "--version") {
    log.info(version_text());
    return ExitCode::Done;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (command.name == args[0]) return command.run(args.subspan(1), log);
    names.emplace_back(command.name);
  }
  const std::string nearest = nearest_name(args[0], names);
  fail(ExitCode::BadInput, "unknown command \"", args[0], "\"; ",
       nearest.empty() ? str("there are: ", join(names, ", ")) : str("did you mean ", nearest, "?"));
}

}  // namespace mcpp
