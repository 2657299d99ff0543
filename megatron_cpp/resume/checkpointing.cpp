#include "megatron_cpp/resume/checkpointing.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/number_format.h"
#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "base/system_error.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/retention.h"
#include "checkpoint/directory/run_folder.h"
#include "comm/object_collectives.h"
#include "data/dataset/blend.h"
#include "data/dataset/dataset_info.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/resume/local_checkpoint.h"
#include "megatron_cpp/resume/run_metrics_object.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/setup/version.h"

namespace mcpp {
namespace {

constexpr char kSeparator = ';';  // separates the datasets of one key

/// Returns the dataset prefixes of each key that names datasets.
std::map<std::string, std::vector<std::string>> prefixes_by_key(const DataConfig& data) {
  std::map<std::string, std::vector<std::string>> result;
  const auto add = [&](const char* key, const std::vector<std::string>& entries) {
    if (!entries.empty()) result[key] = parse_blend_list(entries, key).prefixes;
  };
  add("data.data_path", data.data_path);
  add("data.train_data_path", data.train_data_path);
  add("data.valid_data_path", data.valid_data_path);
  add("data.test_data_path", data.test_data_path);
  return result;
}

std::string name_in_checkpoint(const std::string& key) {
  return "datasets of " + key;
}

}  // namespace

DatasetIdentities identify_datasets(const Config& config, Communicator& world) {
  DatasetIdentities identities;
  std::string lines;
  run_on_all_ranks(world, [&] {
    for (const auto& [key, prefixes] : prefixes_by_key(config.data)) {
      std::vector<std::string> dataset_identities;
      for (const std::string& prefix : prefixes) {
        dataset_identities.push_back(dataset_identity(prefix));
        lines += str(prefix, ": ", dataset_identities.back(), "\n");
      }
      identities[key] = join(dataset_identities, std::string(1, kSeparator));
    }
  });
  check_identical_on_ranks("dataset", lines, world, "all nodes must read the same files; copy them again");
  return identities;
}

void store_sources(const DataProvenance& sources, RunState& run) {
  run.tokenizer_checksum = sources.tokenizer_checksum;
  for (const auto& [key, identities] : sources.datasets) run.extra[name_in_checkpoint(key)] = identities;
}

Config with_moved_datasets(Config saved, const Config& config, const DatasetIdentities& now, const RunState& run) {
  const auto move = [&](const char* key, std::vector<std::string>& before, const std::vector<std::string>& after) {
    const auto stored = run.extra.find(name_in_checkpoint(key));
    const auto it = now.find(key);
    if (stored == run.extra.end() || it == now.end() || stored->second != it->second) return;
    if (parse_blend_list(before, key).weights == parse_blend_list(after, key).weights) before = after;
  };
  move("data.data_path", saved.data.data_path, config.data.data_path);
  move("data.train_data_path", saved.data.train_data_path, config.data.train_data_path);
  move("data.valid_data_path", saved.data.valid_data_path, config.data.valid_data_path);
  move("data.test_data_path", saved.data.test_data_path, config.data.test_data_path);
  return saved;
}

void check_same_datasets(const Config& config, const DatasetIdentities& now, const RunState& run,
                         const std::string& checkpoint, const Log& log) {
  const std::vector<std::string>& accepted = config.checkpoint.allow_changed_keys;
  std::vector<std::string> lines, refused;
  for (const auto& [key, prefixes] : prefixes_by_key(config.data)) {
    const auto saved = run.extra.find(name_in_checkpoint(key));
    const auto it = now.find(key);
    if (saved == run.extra.end() || it == now.end()) continue;
    const std::vector<std::string> before = split(saved->second, kSeparator), after = split(it->second, kSeparator);
    for (std::size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
      if (before[i] == after[i]) continue;
      if (std::ranges::count(accepted, key) > 0) {
        log.warn(str("accepted: ", key, ": ", prefixes[i],
                     " is a different text than the one trained on: samples are reshuffled, so text may be read "
                     "again or skipped"));
        continue;
      }
      lines.push_back(str("\n  ", key, ": ", prefixes[i], "\n    in the checkpoint: ", before[i],
                          "\n    now:               ", after[i]));
      if (std::ranges::count(refused, key) == 0) refused.push_back(key);
    }
  }
  check_input(lines.empty(), checkpoint,
              ": was trained on a different text than these datasets have now:", join(lines, ""),
              "\nRestore the old files, or accept the change with --checkpoint.allow_changed_keys=", join(refused, ","),
              ", or start a new run from the weights with --checkpoint.finetune");
}

namespace {

constexpr const char* kTrainedSamples = "trained_samples";
constexpr const char* kOptimizerSteps = "optimizer_steps";
constexpr const char* kConsecutiveSkips = "consecutive_skips";
constexpr const char* kRollbacks = "rollbacks";
constexpr const char* kRecentLosses = "recent_losses";
constexpr const char* kRecentGradNorms = "recent_grad_norms";
constexpr const char* kLossScale = "loss_scale";

/// Returns texts that read back to bitwise identical values.
std::string values_text(std::span<const double> values) {
  std::vector<std::string> words;
  for (const double value : values) words.push_back(shortest(value));
  return join(words, " ");
}

std::vector<double> extra_values(const RunState& run, const char* name) {
  const auto it = run.extra.find(name);
  std::vector<double> values;
  if (it == run.extra.end() || it->second.empty()) return values;
  for (const std::string& word : split(it->second, ' ')) values.push_back(std::strtod(word.c_str(), nullptr));
  return values;
}

/// Returns an optional counter of a checkpoint; 0 if absent.
i64 extra_count(const RunState& run, const char* name) {
  const auto it = run.extra.find(name);
  return it == run.extra.end() ? 0 : std::stoll(it->second);
}

/// Compares checksums, since a file of the same name may tokenize text differently.
void check_same_tokenizer(const Config& config, const RunState& run, const std::string& checkpoint, const Log& log) {
  const auto [file, checksum] = tokenizer_source(config.data);
  if (checksum.empty() || run.tokenizer_checksum.empty() || checksum == run.tokenizer_checksum) return;
  const std::string change = str("(checksum ", run.tokenizer_checksum, ", now ", checksum, ")");
  const bool is_accepted = std::ranges::count(config.checkpoint.allow_changed_keys, "data.tokenizer_model") > 0;
  const bool is_named = !config.data.tokenizer_model.empty();
  check_input(is_accepted, checkpoint, ": was trained with a different tokenizer than ", is_named ? "" : "that of ",
              file, " ", change, is_named ? "; use" : "; preprocess the text again with",
              " the one it was trained with, or accept the change with "
              "--checkpoint.allow_changed_keys=data.tokenizer_model");
  log.info(str("accepted: data.tokenizer_model: a different tokenizer ", change));
}

i64 extra_number(const RunState& run, const char* name, const Path& checkpoint) {
  const auto it = run.extra.find(name);
  check_input(it != run.extra.end(), checkpoint.string(), ": has only weights, no ", name,
              "; to start a new run from them, set checkpoint.finetune = true");
  return std::stoll(it->second);
}

/// Warns if the stage in progress has a different length than before.
void warn_of_changed_stage(const SavedStage& saved, const Stage& now, i64 iteration, const Log& log) {
  if (saved.iterations == now.iterations || iteration == now.first_iteration) return;
  log.warn(str(now.title(), ": now has ", now.iterations, " iterations instead of ", saved.iterations,
               ": its samples are reshuffled, so that samples already read may be read again"));
}

/// Warns if training ends at a different sample than before.
void warn_of_changed_end(const Config& saved, const Config& now, const RunState& run, const Log& log) {
  const i64 before = saved.training_end(run.iteration, run.consumed_samples).samples;
  const i64 after = now.training_end(run.iteration, run.consumed_samples).samples;
  if (before != after) {
    log.warn(
        str("training now ends after ", after, " samples instead of ", before,
            ": text that is read in several epochs is reshuffled, so that samples already read may be read again"));
  }
  const i64 unread = now.training.train_samples - after;
  if (before != after && now.training.train_samples > 0 && unread > 0) {
    log.warn(str("the last ", unread, " of training.train_samples = ", now.training.train_samples,
                 " samples are not used for training: they are less than a batch"));
  }
}

/// Warns about every consequence of settings that changed since the checkpoint was saved and that resuming allows.
void warn_of_changed_settings(const Config& saved, const Config& now, const RunState& run, const Log& log) {
  for (const std::string& warning : schedule_warnings(saved, now)) log.warn(warning);
  if (!now.stage) warn_of_changed_end(saved, now, run, log);
  const i64 first_sample = now.stage ? now.stage->first_sample : 0;
  for (const std::string& warning : data_warnings(saved, now, run.consumed_samples - first_sample)) log.warn(warning);
  const double before_scale = saved.optimizer.initial_loss_scale, now_scale = now.optimizer.initial_loss_scale;
  if (before_scale != now_scale && run.extra.contains(kLossScale)) {
    log.warn(str("optimizer.initial_loss_scale: ", now_scale,
                 " has no effect: a resumed run continues with the loss scale of its checkpoint"));
  }
}

/// Removes the temporary file of a write_file_atomic() of `file` that was killed. The folder must be locked, so that no
/// other process is writing it.
void remove_temporary_files(const Path& file) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(file.parent_path(), ignored)) {
    if (entry.path().filename().string().starts_with(file.filename().string() + ".tmp-"))
      std::filesystem::remove(entry.path(), ignored);
  }
}

/// Throws BadInput, naming the key, if the folder of its output cannot be written.
void check_output_folder(const std::string& key, const Path& folder) {
  try {
    check_writable_or_creatable(folder);
  } catch (const Error& error) {
    fail(error.code(), key, ": ", error.what());
  }
}

/// Throws BadInput if metrics or TensorBoard events cannot be written where configured.
void check_log_outputs(const Config& config) {
  const LoggingConfig& logging = config.logging;
  const std::string &events = logging.tensorboard_dir, &metrics = logging.metrics_path;
  check_input(events.empty() || !std::filesystem::is_regular_file(events), "logging.tensorboard_dir: ", events,
              " is a file; set a folder");
  if (!events.empty()) check_output_folder("logging.tensorboard_dir", events);
  if (metrics.empty()) return;
  check_input(!std::filesystem::is_directory(metrics), "logging.metrics_path: ", metrics, " is a folder; set a file");
  check_output_folder("logging.metrics_path", std::filesystem::absolute(metrics).parent_path());
  MCPP_CHECK_SYSTEM(::access(metrics.c_str(), F_OK) != 0 || ::access(metrics.c_str(), W_OK) == 0,
                    "logging.metrics_path: cannot write ", metrics);
}

}  // namespace

void TrainingProgress::roll_back_to(const TrainingProgress& saved) {
  trained_samples = saved.trained_samples;
  skipped_iterations = saved.skipped_iterations + iteration - saved.iteration;
  consecutive_skips = 0;
  rollbacks += 1;
  spikes = saved.spikes;
}

void check_outputs(const Config& config, Communicator& world) {
  run_on_rank0(world, [&] {
    const LoggingConfig& logging = config.logging;
    if (!config.checkpoint.save.empty()) check_save_folder(config.checkpoint.save);
    if (!logging.metrics_path.empty()) check_file_outside_checkpoints(logging.metrics_path, "logging.metrics_path");
    if (!logging.tensorboard_dir.empty()) check_outside_checkpoints(logging.tensorboard_dir, "logging.tensorboard_dir");
    if (!logging.profile_dir.empty()) check_outside_checkpoints(logging.profile_dir, "logging.profile_dir");
  });
}

std::unique_ptr<FolderLock> lock_save_folder(const Config& config, Session& session, const Log& log) {
  std::unique_ptr<FolderLock> lock;
  if (config.checkpoint.save.empty()) return lock;
  Communicator& world = session.parallel.world;
  run_on_rank0(world, [&] {
    lock = std::make_unique<FolderLock>(config.checkpoint.save, log, session.job);
    remove_stale_entries(config.checkpoint.save, log);  // a run that has nothing left to save would not remove them
    remove_temporary_files(config.metrics_path());
    restore_metrics(config);
  });
  if (!is_s3_path(config.checkpoint.save)) check_shared_folder(config.checkpoint.save, world);
  return lock;
}

void check_save_folders(const Config& config, Communicator& world) {
  run_on_all_ranks(world, [&] {
    const CheckpointConfig& checkpoint = config.checkpoint;
    if (world.rank() == 0 && !checkpoint.save.empty()) check_writable_or_creatable(checkpoint.save);
    if (!checkpoint.local_save.empty()) check_writable_or_creatable(local_target(checkpoint, world).folder);
    if (world.rank() == 0) check_log_outputs(config);
  });
}

std::string tokenizer_checksum(const Config& config, Session& session) {
  std::string checksum;
  Communicator& world = session.parallel.world;
  run_on_rank0(world, [&] { checksum = tokenizer_source(config.data).checksum; });
  return checksum;
}

void save_tokenizer(const Config& config, Session& session, const std::string& checksum) {
  const std::string& path = config.data.tokenizer_model;
  if (path.empty() || config.checkpoint.save.empty()) return;
  Communicator& world = session.parallel.world;
  run_on_rank0(world, [&] {
    const std::string model = read_tokenizer_file(path);
    check_input(checksum_hex(model) == checksum, path, ": changed while this run started");
    const Path copy = saved_tokenizer(config.checkpoint.save);
    if (!is_s3_path(copy)) remove_temporary_files(copy);
    if (!stored_file_exists(copy) || read_stored_text(copy) != model) write_stored_text(copy, model);
  });
}

RunState run_state(const Config& config, const TrainingProgress& progress, i64 optimizer_steps) {
  RunState run;
  run.iteration = progress.iteration;
  run.consumed_samples = progress.consumed_samples;
  run.consumed_tokens = progress.consumed_tokens;
  run.skipped_iterations = progress.skipped_iterations;
  run.config = print_config(config);
  run.program_version = version_text();
  store_special_tokens(progress.special_tokens, run);
  run.extra[kTrainedSamples] = str(progress.trained_samples);
  run.extra[kOptimizerSteps] = str(optimizer_steps);
  run.extra[kConsecutiveSkips] = str(progress.consecutive_skips);
  run.extra[kRollbacks] = str(progress.rollbacks);
  run.extra[kRecentLosses] = values_text(progress.spikes.losses);
  run.extra[kRecentGradNorms] = values_text(progress.spikes.grad_norms);
  return run;
}

RunState run_state(const Config& config, const TrainingState& state, const TrainingProgress& progress) {
  RunState run = run_state(config, progress, state.optimizer().steps());
  if (state.loss_scale().is_dynamic()) run.extra[kLossScale] = state.loss_scale().state();
  store_stage(config, progress.stage, run);
  return run;
}

std::optional<i64> optimizer_steps_of(const RunState& run) {
  return run.extra.contains(kOptimizerSteps) ? std::optional(extra_count(run, kOptimizerSteps)) : std::nullopt;
}

SpecialTokens load_special_tokens(const Config& config, const CheckpointReader& reader, const Log& log) {
  const RunState& run = reader.state();
  SpecialTokens tokens = read_special_tokens(run, reader.directory().string());
  const std::string checksum = tokenizer_source(config.data).checksum;
  const bool is_other = !checksum.empty() && !run.tokenizer_checksum.empty() && checksum != run.tokenizer_checksum;
  if (!is_other || !tokens.is_stated()) return tokens;
  log.info("the special tokens that the model states are ignored: they belong to a different tokenizer");
  return {};
}

TrainingProgress saved_counters(const CheckpointReader& reader) {
  const RunState& run = reader.state();
  extra_number(run, kOptimizerSteps, reader.directory());
  return {.iteration = run.iteration,
          .consumed_samples = run.consumed_samples,
          .trained_samples = extra_number(run, kTrainedSamples, reader.directory()),
          .consumed_tokens = run.consumed_tokens,
          .skipped_iterations = run.skipped_iterations,
          .consecutive_skips = extra_count(run, kConsecutiveSkips),
          .rollbacks = extra_count(run, kRollbacks),
          .stage = read_stage(run, reader.directory().string())};
}

TrainingProgress saved_progress(const Config& config, const DatasetIdentities& datasets, const CheckpointReader& reader,
                                const Log& log) {
  const RunState& run = reader.state();
  const std::string source = reader.directory().string();
  TrainingProgress progress = saved_counters(reader);
  if (check_same_stage(config, run, source)) {
    const Config saved =
        with_moved_datasets(parse_stored_config(run.config, source + "/config"), config, datasets, run);
    check_fixed_in_stage(saved, config, source);
    check_same_run(saved, config, source, log);
    check_same_tokenizer(config, run, source, log);
    check_same_datasets(config, datasets, run, source, log);
  }
  // With the policy off, no values are added, so the values in the checkpoint would be outdated when the policy is
  // turned on again.
  if (config.training.spike_policy != SpikePolicy::Off)
    progress.spikes = {.losses = extra_values(run, kRecentLosses), .grad_norms = extra_values(run, kRecentGradNorms)};
  progress.lineage = lineage_of(reader.directory());
  progress.special_tokens = load_special_tokens(config, reader, log);
  return progress;
}

void check_weights(const Config& config, const CheckpointReader& reader, const Log& log) {
  const std::string source = reader.directory().string();
  check_same_architecture(parse_stored_config(reader.state().config, source + "/config"), config, source, log);
  check_same_tokenizer(config, reader.state(), source, log);
}

void restore_counters(const Config& config, TrainingState& state, const CheckpointReader& reader, const Log& log) {
  const RunState& run = reader.state();
  const std::string source = reader.directory().string();
  state.optimizer().set_steps(extra_number(run, kOptimizerSteps, reader.directory()));
  // Absent if the precision or the loss scale was changed: then the scale starts from its initial value.
  if (const auto scale = run.extra.find(kLossScale); scale != run.extra.end())
    state.loss_scale().restore(scale->second, source + ": " + kLossScale);
  if (!check_same_stage(config, run, source)) return;
  Config saved = parse_stored_config(run.config, source + "/config"), now = config;
  const SavedStage stage = read_stage(run, source);
  set_schedule_lengths(stage, saved, now);
  warn_of_changed_settings(saved, now, run, log);
  if (config.stage) warn_of_changed_stage(stage, *config.stage, run.iteration, log);
}

Path saved_tokenizer(const Path& checkpoint_folder) {
  return checkpoint_folder / "tokenizer.model";
}

Path folder_of_checkpoint(const Path& checkpoint) {
  return (is_s3_path(checkpoint) ? checkpoint : std::filesystem::absolute(checkpoint)).parent_path();
}

Path tokenizer_of(const Path& checkpoint, const Config& config) {
  const Path saved = saved_tokenizer(folder_of_checkpoint(checkpoint));
  return stored_file_exists(saved) ? local_copy(saved) : Path(config.data.tokenizer_model);
}

}  // namespace mcpp
