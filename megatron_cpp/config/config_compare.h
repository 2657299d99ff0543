// Comparison of a resumed run with the configuration of its checkpoint.
#pragma once
#include <string>
#include <vector>

#include "base/log.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// Run-defining key whose values differ; both values are in TOML.
struct Difference {
  std::string key;
  std::string before;
  std::string now;
};

/// Returns the differences between two configurations in the keys that determine the model, the data and the order of
/// the data. Equivalent spellings of a setting are not differences. Keys that affect only duration, output paths, speed
/// and memory (train_iters, checkpoint paths, logging, device, micro_batch_size, recompute) may change freely.
std::vector<Difference> differences(const Config& before, const Config& now);

/// Throws BadInput listing every difference that checkpoint.allow_changed_keys of `now` does not name; logs the others.
/// `checkpoint` is the location of `saved` for the message.
void check_same_run(const Config& saved, const Config& now, const std::string& checkpoint, const Log& log);

/// Returns the differences between two models in the keys that determine their weights and what they compute with them.
/// Dropout, initialization and, if position embeddings are not trained, the context length may differ.
std::vector<Difference> architecture_differences(const ModelConfig& before, const ModelConfig& now);

/// Throws BadInput if the weights of the checkpoint do not fit the model of `now`. Use it for runs that load only
/// weights. `now` may lack the multi-token prediction of the checkpoint, which logs a warning.
void check_same_architecture(const Config& saved, const Config& now, const std::string& checkpoint, const Log& log);

/// Returns a warning for each schedule (learning rate, weight decay) whose remaining part changes because the length of
/// training or the batch size changed.
std::vector<std::string> schedule_warnings(const Config& saved, const Config& now);

/// Returns a warning for each allowed change of the data that training or an evaluation reads next. `consumed_samples`
/// is the number of samples consumed before this start.
std::vector<std::string> data_warnings(const Config& saved, const Config& now, i64 consumed_samples);

/// Returns the run-defining keys as "section.key", in the order of the sections. Only these may be named in
/// checkpoint.allow_changed_keys.
std::vector<std::string> run_defining_keys();

}  // namespace mcpp
