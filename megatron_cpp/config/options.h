// Options of one subcommand: a struct with fields() is filled from a command line. All mistakes are reported at once.
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
#pragma once
#include "base/log.h"
#include "megatron_cpp/config/arguments.h"

namespace mcpp {

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
