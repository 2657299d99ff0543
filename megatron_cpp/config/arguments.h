// Command-line arguments as settings: --key=value, --key value, a bare --key for a bool, and positional arguments.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "megatron_cpp/config/settings.h"

namespace mcpp {

using Arguments = std::span<const std::string>;  ///< those after the subcommand's name

/// What a command line looks like beyond the fields themselves.
struct Usage {
  std::string command;  ///< "megatron_cpp preprocess"
  std::string summary;  ///< what it does, in a sentence or two, for --help
  /// Keys that bare arguments are given to, in this order; a list as the last of them takes all that remain.
  std::vector<std::string> positional = {};
  std::vector<std::string> required = {};  ///< keys that must be given
};

/// Whether --help or -h is among the arguments.
bool asks_for_help(Arguments args);

/// Whether the first option is --list_options: what a shell asks for to complete a command line.
bool asks_for_options(Arguments args);

/// The answer: a line for each option, "--key=" or, for a bool and each name that a key accepts, the whole word; then,
/// after a tab, what it means.
std::string options_list(const std::vector<Field>& fields);

/// Hands each argument to the reader as a setting of one of its fields. Dashes in a key count as underscores; after
/// "--" all arguments are positional. Unknown options, missing values and missing required keys become problems.
void read_arguments(Arguments args, const Usage& usage, SettingsReader& reader);

/// The text of --help: usage, summary, and a line for each field with its type, range and default.
std::string arguments_help(const Usage& usage, const std::vector<Field>& fields);

/// "integer, at least 1; default 12" with the words of the field's help before it.
std::string describe_field(const Field& field);

}  // namespace mcpp
