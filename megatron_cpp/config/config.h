// Configuration of a run, read from a TOML file with one section per struct and from --section.key=value on the command
// line, which takes precedence. All problems are found before the run starts and are reported together.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"
#include "checkpoint/config.h"
#include "data/config.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/config/batch_size_schedule.h"
#include "megatron_cpp/config/sections/device_config.h"
#include "megatron_cpp/config/sections/fault_injection_config.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/config/sections/parallel_config.h"
#include "megatron_cpp/config/sections/training_config.h"
#include "megatron_cpp/config/stage.h"
#include "model/config/config.h"
#include "optimizer/config.h"

namespace mcpp {

/// Totals over a complete training, counted from its first iteration.
struct TrainingEnd {
  i64 iterations = 0;
  i64 samples = 0;
  bool operator==(const TrainingEnd&) const = default;
};

struct Config {
  ModelConfig model;
  TrainingConfig training;
  ParallelConfig parallel;
  OptimizerConfig optimizer;
  DataConfig data;
  CheckpointConfig checkpoint;
  LoggingConfig logging;
  DeviceConfig device;
  FaultInjectionConfig fault_injection;
  std::optional<Stage> stage = {};  ///< set if this is the configuration of one stage of a run
  std::vector<Config> stages = {};  ///< configurations of the stages, in order; empty for a run without stages

  /// Calls visit(name, section) for every section.
  template <class Self, class Visitor>
  static void sections(Self& self, Visitor&& visit) {
    visit("model", self.model);
    visit("training", self.training);
    visit("parallel", self.parallel);
    visit("optimizer", self.optimizer);
    visit("data", self.data);
    visit("checkpoint", self.checkpoint);
    visit("logging", self.logging);
    visit("device", self.device);
    visit("fault_injection", self.fault_injection);
  }

  /// Returns every violated rule, within the sections and between them, as "section.key: problem".
  std::vector<std::string> conflicts() const;

  /// Returns the schedule of the global batch size, by consumed samples; it has a single step if the size is constant.
  std::vector<BatchSizeStep> batch_sizes() const;
  /// Returns the end of a run that has finished `iteration` iterations and consumed `consumed_samples` samples,
  /// possibly with different batch sizes. The run ends after train_iters iterations, or after the last full batch
  /// within train_samples. For the configuration of a stage, returns the end of the stage.
  TrainingEnd training_end(i64 iteration = 0, i64 consumed_samples = 0) const;
  /// Returns the iterations and samples of the stage, or of the run without stages.
  TrainingEnd training_length() const {
    return stage ? TrainingEnd{stage->iterations, stage->samples} : training_end();
  }
  /// Returns the number of training samples that are read until `end`: of the stage, or of the run without stages.
  i64 dataset_samples(const TrainingEnd& end) const { return end.samples - (stage ? stage->first_sample : 0); }
  /// Returns the number of iterations of the run, of which a stage is a part.
  i64 run_iterations(const TrainingEnd& end) const { return stage ? stage->run_iterations : end.iterations; }
  /// Returns the number of samples in one evaluation without data.full_validation.
  i64 evaluation_samples() const;
  /// Returns true if a failed step may cause a rollback to a checkpoint.
  bool can_roll_back() const;
  /// Returns true if states, weights or activations are offloaded to disk (optimizer.offload_folder).
  bool offloads_to_disk() const;
  /// Returns the path of metrics.jsonl; empty = not written.
  Path metrics_path() const;
  /// Returns the folder of traces; empty = none.
  Path profile_path() const;
};

/// Parses TOML text; `name` is the file name in messages. `overrides` are arguments "--section.key=value". Throws one
/// BadInput error that lists every problem with its location. In the result, global_batch_size is filled in.
Config parse_config(std::string_view toml, const std::string& name, std::span<const std::string> overrides = {});
/// Parses the configuration that a checkpoint or a metrics file stores, as print_config() wrote it. Keys without effect
/// are accepted, because earlier versions accepted them.
Config parse_stored_config(std::string_view toml, const std::string& name);
Config load_config(const Path& file, std::span<const std::string> overrides = {});

/// Returns the configuration as TOML with the value of every key, and the tables of its stages. parse_config() of it
/// returns an equal configuration. Stored in checkpoints.
std::string print_config(const Config& config);
/// Returns the configuration with keys that have no effect reset to their defaults, so that its print_config() is
/// accepted as a user's file.
Config without_unused_keys(Config config);
/// Returns one section of print_config().
std::string print_section(const Config& config, std::string_view section);
/// Returns the sections and keys that pass the filter with their meaning, type, range and default. Throws BadInput if
/// no such section exists or no key matches.
std::string config_help(const HelpFilter& filter = {});

/// Returns the fields of all sections, named "section.key". The fields refer to `config`.
std::vector<Field> config_fields(Config& config);

/// Derives unset values after `reader` has filled the fields, and reports every violated rule to `reader`.
void complete_config(Config& config, SettingsReader& reader, std::string_view default_location);
/// TOML text and its file name in messages; an empty name means no text.
struct ConfigText {
  std::string toml;
  std::string name;
};

/// Returns the text of `file`; empty if the name is empty. Throws BadInput if it cannot be read.
ConfigText read_config_text(const std::string& file);
/// Reads `text` into the fields of `reader`.
void read_config(const ConfigText& text, SettingsReader& reader);

/// Name of the tables that describe the stages of a run: [[stage]].
inline constexpr const char* kStageTable = "stage";

/// Heading of the configuration keys in the help of a command.
inline constexpr const char* kConfigKeysHeading =
    "\nKeys of the configuration, also as --section.key=value. --help SECTION prints one section;\n"
    "--search TEXT prints the keys that have TEXT in their name or help.\n\n";

/// Reads the command line of commands that take a configuration and options of their own:
///   megatron_cpp evaluate --checkpoint.load=runs/a --split=test --training.micro_batch_size=4
/// `source(options, config)` returns the base text, such as the configuration stored in a checkpoint; its parameters
/// hold the values of the command line only. Returns std::nullopt if --help was requested and printed. Throws BadInput
/// with every problem of the text and of the arguments.
template <class Options, class Source>
std::optional<Config> read_config_and_options(std::span<const std::string> args, const Usage& usage, Options& options,
                                              const Log& log, Source source) {
  if (is_help_request(args)) {
    const HelpFilter filter = help_filter(args);
    const bool is_all = filter.section.empty() && filter.search.empty();
    log.info((is_all ? options_help<Options>(usage) + kConfigKeysHeading : "") + config_help(filter));
    return std::nullopt;
  }
  const auto fields_of = [](Options& some_options, Config& some_config) {
    std::vector<Field> fields;
    list_fields(some_options, "", fields);
    for (Field& field : config_fields(some_config)) fields.push_back(std::move(field));
    return fields;
  };
  if (is_options_request(args)) {
    Config defaults;
    log.info(options_list(fields_of(options, defaults)));
    return std::nullopt;
  }
  // The arguments are read twice, because they select the base text and also override it. Problems of the first pass
  // are dropped, because the second pass reports them too.
  Options first_options = options;
  Config first_config;
  SettingsReader first_reader(fields_of(first_options, first_config));
  read_arguments(args, usage, first_reader);
  const ConfigText text = source(std::as_const(first_options), std::as_const(first_config));

  Config config;
  SettingsReader reader(fields_of(options, config));
  reader.accept_tables(kStageTable);
  read_config(text, reader);
  read_arguments(args, usage, reader);
  complete_config(config, reader, text.name);
  reader.finish();
  if (const std::string hint = reader.renaming_hint(); !hint.empty()) log.warn(hint);
  return config;
}

/// Overload for commands such as `megatron_cpp pretrain run.toml --model.num_layers=4 --dry_run`. Options has a member
/// `std::string config` that names the file; if it is empty, the configuration consists of the arguments only.
template <class Options>
std::optional<Config> read_config_and_options(std::span<const std::string> args, const Usage& usage, Options& options,
                                              const Log& log) {
  return read_config_and_options(args, usage, options, log,
                                 [](const Options& parsed, const Config&) { return read_config_text(parsed.config); });
}

}  // namespace mcpp
