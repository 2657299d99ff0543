// Command-line arguments as settings: --key=value, --key value, a bare --key for a bool, and positional arguments.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "megatron_cpp/config/settings.h"

namespace mcpp {

using Arguments = std::span<const std::string>;  ///< those after the subcommand's name

/// Description of a command line besides its fields.
struct Usage {
  std::string command;  ///< such as "megatron_cpp preprocess"
  std::string summary;  ///< purpose of the command in one or two sentences, for --help
  /// Keys that positional arguments are assigned to, in this order. If the last is a list, it takes all remaining ones.
  std::vector<std::string> positional = {};
  std::vector<std::string> required = {};  ///< keys that must be set
};

/// Returns true if --help, -h, --help=SECTION or --search=TEXT is among the arguments.
bool is_help_request(Arguments args);

/// Part of the configuration keys that a request for help asks for.
struct HelpFilter {
  std::string section = {};  ///< of --help SECTION or --help=SECTION; empty = all sections
  std::string search = {};   ///< of --search=TEXT: part of a key or of its help, ignoring case; empty = all keys
};
HelpFilter help_filter(Arguments args);

/// Returns true if the first option is --list_options, which shell completion uses.
bool is_options_request(Arguments args);

/// Returns a line for each option: "--key=" or, for a bool and for each name that a key accepts, the whole word; then a
/// tab and the help text.
std::string options_list(const std::vector<Field>& fields);

/// Passes each argument to the reader as a setting of one of its fields. Dashes in a key count as underscores; after
/// "--" all arguments are positional. Unknown options, missing values and missing required keys become problems.
void read_arguments(Arguments args, const Usage& usage, SettingsReader& reader);

/// Returns the text of --help: usage, summary, and a line for each field with its type, range and default.
std::string arguments_help(const Usage& usage, const std::vector<Field>& fields);

/// Returns the help of the field followed by its type, range and default: "...; integer, at least 1; default 12".
std::string describe_field(const Field& field);

}  // namespace mcpp
