// Whether a resumed run is still the run that its checkpoint belongs to.
#pragma once
#include <string>
#include <vector>

#include "base/log.h"
#include "megatron_cpp/config/config.h"

namespace mcpp {

/// A key that defines the run and whose values differ, both in TOML.
struct Difference {
  std::string key;
  std::string before;
  std::string now;
};

/// The differences between two configurations, other than in how one says the same, in the keys that decide what is
/// trained, on which data, in which order. How long, where to, how fast and with how much memory (train_iters, paths of
/// checkpoints, logging, device, micro_batch_size, recompute) may change freely.
std::vector<Difference> differences(const Config& before, const Config& now);

/// Throws BadInput listing every difference that checkpoint.allow_changed_keys of `now` does not name; the others are
/// logged. `checkpoint` is the place that `saved` was read from, for the message.
void check_same_run(const Config& saved, const Config& now, const std::string& checkpoint, const Log& log);

/// The same for a run that takes only the weights: they mean nothing in another model. Dropout, initialisation and,
/// where no table of positions was trained, the context may differ.
void check_same_architecture(const Config& saved, const Config& now, const std::string& checkpoint, const Log& log);

/// Returns a warning for each schedule (learning rate, weight decay) whose remainder changes: because it spans the
/// whole training and the length changed, or because it depends on the batch size.
std::vector<std::string> schedule_warnings(const Config& saved, const Config& now);

/// Returns a warning for each accepted change of which text is read next, or of what an evaluation reads.
/// `consumed_samples` is the number of samples consumed before this start.
std::vector<std::string> data_warnings(const Config& saved, const Config& now, i64 consumed_samples);

/// The keys that define a run, as "section.key", in the order of the sections: those that checkpoint.allow_changed_keys
/// may name, which is checked when a configuration is read.
std::vector<std::string> run_defining_keys();

}  // namespace mcpp
