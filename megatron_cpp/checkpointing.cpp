#include "megatron_cpp/checkpointing.h"

#include <algorithm>
#include <filesystem>

#include "checkpoint/exchange.h"
#include "checkpoint/folder.h"
#include "megatron_cpp/config_compare.h"
#include "megatron_cpp/version.h"

namespace mcpp {
namespace {

constexpr const char* kTrainedSamples = "trained_samples";
constexpr const char* kOptimizerSteps = "optimizer_steps";

/// The optimizer's states as pieces of global tensors; their data are views, so reading into them loads the optimizer.
std::vector<NamedShard> optimizer_shards(const Optimizer& optimizer) {
  std::vector<NamedShard> shards;
  optimizer.visit_state([&](StateKind kind, Param& param, i64 first, const Tensor& values) {
    shards.emplace_back(optimizer_tensor(name_of(kind), param.name), param.box, first, first + values.numel(), values);
  });
  return shards;
}

std::vector<NamedShard> weight_shards(GPTModel& model) {
  std::vector<NamedShard> shards;
  model.visit([&](Param& param, int) { shards.emplace_back(model_tensor(param.name), param.box, param.value); });
  return shards;
}

RunState run_state(const Config& config, const TrainingState& state, const TrainingProgress& progress) {
  RunState run;
  run.iteration = progress.iteration;
  run.consumed_samples = progress.consumed_samples;
  run.consumed_tokens = progress.consumed_tokens;
  run.skipped_iterations = progress.skipped_iterations;
  run.config = print_config(config);
  run.program_version = version_text();
  run.extra[kTrainedSamples] = str(progress.trained_samples);
  run.extra[kOptimizerSteps] = str(state.optimizer().steps());
  return run;
}

std::string checksum_of(const std::string& text) {
  return checksum_hex(std::as_bytes(std::span(text)));
}

/// The file's name alone is no proof that a resumed run spells its text as before.
void check_same_tokenizer(const Config& config, const RunState& run, const std::string& checkpoint) {
  const std::string& path = config.data.tokenizer_model;
  const bool accepted = std::ranges::count(config.checkpoint.accept_change, "data.tokenizer_model") > 0;
  if (path.empty() || run.tokenizer_checksum.empty() || accepted) return;
  const std::string checksum = checksum_of(read_text_file(path));
  check_input(checksum == run.tokenizer_checksum, checkpoint, ": was trained with another tokenizer than ", path,
              " (checksum ", run.tokenizer_checksum, ", now ", checksum,
              "); name the one it was trained with, or accept the change with "
              "--checkpoint.accept_change=data.tokenizer_model");
}

i64 extra_number(const RunState& run, const char* name, const Path& checkpoint) {
  const auto found = run.extra.find(name);
  check_input(found != run.extra.end(), checkpoint.string(), ": has weights only, no ", name,
              "; to start a new training from them set checkpoint.finetune = true");
  return std::stoll(found->second);
}

TrainingProgress load_all(const Config& config, TrainingState& state, CheckpointReader& reader, const Log& log) {
  const RunState& run = reader.state();
  const std::string place = reader.directory().string();
  const Config saved = parse_config(run.config, place + "/config");
  check_same_run(saved, config, place);
  check_same_tokenizer(config, run, place);
  const std::string warning = decay_warning(saved, config);
  if (!warning.empty()) log.warn(warning);
  const TrainingProgress progress{.iteration = run.iteration,
                                  .consumed_samples = run.consumed_samples,
                                  .trained_samples = extra_number(run, kTrainedSamples, reader.directory()),
                                  .consumed_tokens = run.consumed_tokens,
                                  .skipped_iterations = run.skipped_iterations};
  state.optimizer().set_steps(extra_number(run, kOptimizerSteps, reader.directory()));
  for (NamedShard& shard : weight_shards(state.model())) reader.read(shard);
  for (NamedShard& shard : optimizer_shards(state.optimizer())) reader.read(shard);
  return progress;
}

}  // namespace

std::unique_ptr<FolderLock> lock_save_folder(const Config& config, Session& session, const Log& log) {
  std::unique_ptr<FolderLock> lock;
  if (config.checkpoint.save.empty()) return lock;
  run_together(*session.world, [&] {
    if (session.world->rank() == 0) lock = std::make_unique<FolderLock>(config.checkpoint.save, log);
    return std::string();
  });
  return lock;
}

std::string keep_tokenizer(const Config& config, Session& session) {
  if (config.data.tokenizer_model.empty() || config.checkpoint.save.empty()) return "";
  std::string checksum;
  run_together(*session.world, [&] {
    if (session.world->rank() != 0) return std::string();
    const std::string model = read_text_file(config.data.tokenizer_model);
    const Path kept = saved_tokenizer(config.checkpoint.save);
    if (!std::filesystem::exists(kept) || read_text_file(kept) != model) write_file_atomic(kept, model);
    checksum = checksum_of(model);
    return std::string();
  });
  return checksum;
}

Path save_training(const Config& config, TrainingState& state, const TrainingProgress& progress,
                   const std::string& tokenizer_checksum, Session& session, const Log& log) {
  std::vector<NamedShard> shards = weight_shards(state.model());
  for (NamedShard& shard : optimizer_shards(state.optimizer())) shards.push_back(std::move(shard));
  const CheckpointConfig& checkpoint = config.checkpoint;
  RunState run = run_state(config, state, progress);
  run.tokenizer_checksum = tokenizer_checksum;
  return save_checkpoint(checkpoint.save, run, shards, *session.world, log,
                         {.keep_last = checkpoint.keep_last, .save_retain_interval = checkpoint.save_retain_interval});
}

std::optional<TrainingProgress> load_training(const Config& config, TrainingState& state, const Log& log) {
  const CheckpointConfig& checkpoint = config.checkpoint;
  const Path folder = checkpoint.load.empty() ? checkpoint.save : checkpoint.load;
  if (folder.empty()) return std::nullopt;
  const bool must_exist = checkpoint.exit_on_missing_checkpoint || checkpoint.finetune;
  const std::optional<Path> found = must_exist ? find_checkpoint(folder, log) : newest_good(folder, log);
  if (!found) return std::nullopt;
  CheckpointReader reader(*found, Trust::Verified);
  if (!checkpoint.finetune) {
    log.info(str("resuming from ", found->string()));
    return load_all(config, state, reader, log);
  }
  log.info(str("starting from the weights of ", found->string()));
  load_weights(reader, state.model());
  state.optimizer().copy_model_to_master();
  return TrainingProgress{};
}

Path saved_tokenizer(const Path& checkpoint_folder) {
  return checkpoint_folder / "tokenizer.model";
}

Path find_checkpoint(const Path& folder_or_checkpoint, const Log& log) {
  if (std::filesystem::exists(folder_or_checkpoint / kManifestName)) {
    const std::vector<std::string> problems = problems_of(folder_or_checkpoint);
    check_input(problems.empty(), join(problems, "\n"));
    return folder_or_checkpoint;
  }
  const std::optional<Path> found = newest_good(folder_or_checkpoint, log);
  check_input(found.has_value(), folder_or_checkpoint.string(),
              ": no checkpoint there; give a checkpoint, or a folder that holds some");
  return *found;
}

void load_weights(CheckpointReader& reader, GPTModel& model) {
  for (NamedShard& shard : weight_shards(model)) reader.read(shard, Conversion::Convert);
}

}  // namespace mcpp
