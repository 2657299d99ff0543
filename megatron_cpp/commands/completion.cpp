// Command megatron_cpp completion bash|zsh: prints the shell's part of completion, which queries the program for
// candidates.
#include <array>
#include <span>

#include "base/program/program_files.h"
#include "megatron_cpp/commands/commands.h"
#include "megatron_cpp/config/arguments.h"

namespace mcpp {

enum class Shell : u8 { Bash, Zsh };

template <>
struct EnumNames<Shell> {
  static constexpr std::array<std::string_view, 2> value{"bash", "zsh"};
};

/// Returns the files of scripts/completion/, embedded by CMake, in the order of Shell.
std::span<const EmbeddedFile> completion_files();

namespace {

struct CompletionOptions {
  Shell shell = Shell::Bash;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("shell", self.shell, "shell that reads the script, as in: source <(megatron_cpp completion bash)");
  }
};

}  // namespace

ExitCode completion_command(Arguments args, Log& log) {
  const Usage usage{.command = "megatron_cpp completion",
                    .summary =
                        "Prints a script that lets a shell complete commands, options and the names that they "
                        "accept. It\nqueries the program with --list_options.",
                    .positional = {"shell"},
                    .required = {"shell"}};
  CompletionOptions options;
  if (!read_options(args, usage, options, log)) return ExitCode::Done;
  log.info(completion_files()[static_cast<std::size_t>(options.shell)].content);
  return ExitCode::Done;
}

}  // namespace mcpp
