// Command-line arguments as settings: --key=value, --key value, a bare --key for a bool, and positional arguments.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/log.h"
#include "megatron_cpp/config/settings.h"

namespace mcpp {

using Arguments = std::span<const std::string>;  ///< arguments after the name of the subcommand

/// Description of a command line, in addition to its fields.
struct Usage {
  std::string command;  ///< such as "megatron_cpp preprocess"
  std::string summary;  ///< purpose of the command in one or two sentences, for --help
  /// Keys that positional arguments are assigned to, in this order. If the last key is a list, it is assigned all
  /// remaining arguments.
  std::vector<std::string> positional = {};
  std::vector<std::string> required = {};  ///< keys that must be set
};

/// Returns true if --help, -h, --help=SECTION, --search TEXT or --search=TEXT is among the arguments.
bool is_help_request(Arguments args);

/// Selection of the configuration keys in a help text.
struct HelpFilter {
  std::string section = {};  ///< section of --help SECTION or --help=SECTION; empty = all
  std::string search = {};   ///< TEXT of --search=TEXT: part of a key or its help, ignoring case; empty = all
};
HelpFilter help_filter(Arguments args);

/// Returns true if the first option is --list_options, which shell completion uses.
bool is_options_request(Arguments args);

/// Returns a line per option: the word, a tab and the help text. The word is "--key=", or complete for a bool and for
/// each name that a key accepts.
std::string options_list(const std::vector<Field>& fields);

/// Passes each argument to the reader as a setting of one of its fields. Dashes in a key count as underscores; after
/// "--" all arguments are positional. Unknown options, missing values and missing required keys are reported as
/// problems.
void read_arguments(Arguments args, const Usage& usage, SettingsReader& reader);

/// Returns the text of --help: usage, summary, and a line for each field with its type, range and default.
std::string arguments_help(const Usage& usage, const std::vector<Field>& fields);

/// Returns the help of the field followed by its type, range and default: "...; integer, at least 1; default 12".
std::string describe_field(const Field& field);

// Options of one subcommand: a struct with fields() is filled from a command line. All problems are reported together.
//
//   struct EncodeOptions {
//     std::string model;
//     bool verbose = false;
//     template <class Self, class Visitor> static void fields(Self& self, Visitor& visit) { ... }
//   };
//   const Usage usage{
//       .command = "megatron_cpp encode", .summary = "...", .positional = {"model"}, .required = {"model"}};
//   EncodeOptions options;
//   if (!read_options(args, usage, options, log)) return ExitCode::Done;  // --help was requested and printed

template <class Options>
std::string options_help(const Usage& usage) {
  Options defaults;
  std::vector<Field> fields;
  list_fields(defaults, "", fields);
  return arguments_help(usage, fields);
}

/// Fills `options`. Returns false if --help or the list of options was requested and printed. Throws BadInput with
/// every problem.
template <class Options>
bool read_options(std::span<const std::string> args, const Usage& usage, Options& options, const Log& log) {
  if (is_help_request(args)) {
    log.info(options_help<Options>(usage));
    return false;
  }
  std::vector<Field> fields;
  list_fields(options, "", fields);
  if (is_options_request(args)) {
    log.info(options_list(fields));
    return false;
  }
  SettingsReader reader(std::move(fields));
  read_arguments(args, usage, reader);
  reader.finish();
  if (const std::string hint = reader.renaming_hint(); !hint.empty()) log.warn(hint);
  return true;
}

}  // namespace mcpp
