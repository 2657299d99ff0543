// Stages of a run, from the [[stage]] tables of its configuration file:
//
//   [[stage]]
//   name = "long"
//   train_tokens = 2e9                   # or train_samples, train_iters
//   [stage.model]
//   seq_length = 32768
//   [stage.data]
//   data_path = ["0.7", "books", "0.3", "code"]
//
// Each stage has a complete configuration: the other sections, with the keys of the stage.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "megatron_cpp/config/config.h"
#include "optimizer/lr_schedule.h"

namespace mcpp {

/// Fills in Config::stages and the length of the run from the tables that `reader` has read. Reports every problem of
/// every stage to `reader`, with file, line and key. The other sections must be complete.
void read_stages(Config& config, SettingsReader& reader);

/// Returns the keys that a stage may set, as "section.key".
std::vector<std::string> stage_keys();
/// Returns the keys of a stage outside of sections, and the keys of sections that it may set, for the help.
std::string stage_help();

/// Returns the configurations that a run trains with, in order: one per stage, or `config` itself if it has no stages.
std::vector<Config> training_configs(const Config& config);
/// Returns the configuration of the stage with this name, an argument of --stage; "" = the first stage. Throws BadInput
/// that lists the names if there is no such stage.
const Config& stage_named(const Config& config, const std::string& name);
/// Returns the stage in which a run that has finished `iteration` iterations resumes.
std::size_t stage_at(const std::vector<Config>& stages, i64 iteration);

/// Returns the length of training that the learning rate's schedule refers to: the stage, if it has its own schedule,
/// or else the run.
TrainingLength lr_schedule_length(const Config& config);
/// Returns the length of the run.
TrainingLength run_length(const Config& config);

/// Returns a table of the stages: iterations, samples, tokens, batch size and learning rate; "" without stages.
std::string describe_stages(const Config& config);

}  // namespace mcpp
