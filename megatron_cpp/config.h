// The whole configuration of a run: read from a TOML file with one section per struct, and from --section.key=value
// on the command line, which wins. Every mistake is found before anything starts, and all are reported at once.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "checkpoint/config.h"
#include "data/config.h"
#include "megatron_cpp/batch_size_schedule.h"
#include "megatron_cpp/device_config.h"
#include "megatron_cpp/logging_config.h"
#include "megatron_cpp/options.h"
#include "megatron_cpp/training_config.h"
#include "model/config.h"
#include "optimizer/config.h"

namespace mcpp {

struct Config {
  ModelConfig model;
  TrainingConfig training;
  OptimizerConfig optimizer;
  DataConfig data;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  DeviceConfig device;

  /// Calls visit(name, section) for every section.
  template <class Self, class Visitor>
  static void sections(Self& self, Visitor&& visit) {
    visit("model", self.model);
    visit("training", self.training);
    visit("optimizer", self.optimizer);
    visit("data", self.data);
    visit("checkpoint", self.checkpoint);
    visit("logging", self.logging);
    visit("device", self.device);
  }

  /// Every rule that does not hold, inside the sections and between them, as "section.key: what is wrong".
  std::vector<std::string> conflicts() const;

  /// Global batch size from each number of consumed samples on; one step when it never changes.
  std::vector<BatchSizeStep> batch_sizes() const;
  i64 total_iterations() const;
  i64 total_samples() const;  ///< of whole batches only: at most train_samples
  /// Where metrics.jsonl goes; empty = nowhere.
  Path metrics_path() const;
};

/// Reads TOML text; `name` is the file name that messages show. `overrides` are arguments "--section.key=value".
/// Throws one BadInput error that lists every problem with its place. In the result, global_batch_size is filled in.
Config parse_config(std::string_view toml, const std::string& name, std::span<const std::string> overrides = {});
Config load_config(const Path& file, std::span<const std::string> overrides = {});

/// The configuration as TOML, every key with its value, that parse_config reads back to an equal one. It goes into
/// checkpoints.
std::string print_config(const Config& config);
/// All sections and keys with their meaning, type, range and default.
std::string config_help();

/// The fields of all sections, named "section.key". They refer to `config`.
std::vector<Field> config_fields(Config& config);

/// After the fields were filled by `reader`, derives what is left open, and hands it every rule that does not hold.
void complete_config(Config& config, SettingsReader& reader, std::string_view default_place);
/// Reads `file` into the fields of `reader`.
void read_config_file(const Path& file, SettingsReader& reader);

/// For commands that take a configuration and options of their own: `megatron_cpp pretrain run.toml
/// --model.num_layers=4
/// --dry_run`. Options has a member `std::string config`, the file; when it stays empty, there is none. Returns
/// nothing when --help was asked for, which has then been printed. Throws BadInput with every problem.
template <class Options>
std::optional<Config> read_config_and_options(std::span<const std::string> args, const Usage& usage, Options& options,
                                              const Log& log) {
  if (asks_for_help(args)) {
    log.info(options_help<Options>(usage) + "\nKeys of the configuration file, also as --section.key=value:\n\n" +
             config_help());
    return std::nullopt;
  }
  // Two readings of the same arguments: the first, whose problems are dropped, only finds the file, for what the
  // command line says must come after it.
  Config config;
  Options first = options;
  const auto fields_of = [&config](Options& target) {
    std::vector<Field> fields;
    list_fields(target, "", fields);
    for (Field& field : config_fields(config)) fields.push_back(std::move(field));
    return fields;
  };
  SettingsReader finder(fields_of(first));
  read_arguments(args, usage, finder);
  config = Config();
  SettingsReader reader(fields_of(options));
  if (!first.config.empty()) read_config_file(first.config, reader);
  read_arguments(args, usage, reader);
  complete_config(config, reader, first.config);
  reader.finish();
  return config;
}

}  // namespace mcpp
