#include "megatron_cpp/resume/loading.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/object_store/s3_path.h"
#include "base/object_store/stored_file.h"
#include "checkpoint/directory/folder.h"
#include "checkpoint/directory/lock.h"
#include "checkpoint/directory/retention.h"
#include "checkpoint/load/reader.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/resume/local_checkpoint.h"
#include "megatron_cpp/step/state_checks.h"
#include "megatron_cpp/step/training_shards.h"
#include "tensor/ops/low_rank.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

/// Rank that saved an error, and the number of such ranks, as encoded in tensor names.
struct ErrorName {
  int rank = 0, ranks = 0;
  std::string param;

  std::string tensor() const { return optimizer_tensor(str(kPowerSgdError, "_", rank, "_of_", ranks), param); }
};

/// Removes `prefix` and a number from the front of the text.
bool take(std::string_view& text, std::string_view prefix, int& number) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

std::optional<ErrorName> error_name(std::string_view tensor) {
  ErrorName name;
  const bool is_error = take(tensor, str("optimizer/", kPowerSgdError, "_"), name.rank) &&
                        take(tensor, "_of_", name.ranks) && tensor.starts_with('/') && name.ranks > 0;
  if (!is_error) return std::nullopt;
  name.param = tensor.substr(1);
  return name;
}

bool is_of_power_sgd(std::string_view tensor) {
  return tensor.starts_with(str("optimizer/", kPowerSgdError, "_")) ||
         tensor.starts_with(str("optimizer/", kPowerSgdFactor, "_"));
}

/// Returns how many ranks saved errors of each parameter.
std::map<std::string, int, std::less<>> count_savers(const CheckpointReader& reader) {
  std::map<std::string, int, std::less<>> savers;
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (const auto name = error_name(tensor.name)) savers[name->param] = name->ranks;
  }
  return savers;
}

}  // namespace

std::vector<NamedShard> extract_unsaved(std::vector<NamedShard>& shards, const CheckpointReader& reader) {
  std::vector<NamedShard> unsaved = extract_missing(shards, reader.manifest(), is_of_power_sgd);
  for (NamedShard& shard : unsaved) {
    ops::fill_zero(shard.data);
    if (!error_name(shard.name)) ops::orthonormalize(shard.data);
  }
  return unsaved;
}

std::optional<Damage> load_redistributed_errors(std::vector<NamedShard>& unsaved, CheckpointReader& reader,
                                                const LoadingRanks& ranks) {
  const auto savers = count_savers(reader);
  int rounds = 0;  // identical on all ranks
  for (const auto& [param, count] : savers) rounds = std::max(rounds, count);
  for (int round = 0; round < rounds; ++round) {
    std::vector<NamedShard> stored_errors;
    std::vector<Tensor> sums;
    for (const NamedShard& shard : unsaved) {
      std::optional<ErrorName> name = error_name(shard.name);
      const auto saved = name ? savers.find(name->param) : savers.end();
      if (saved == savers.end()) continue;
      name->rank += round * name->ranks;
      name->ranks = saved->second;
      if (name->rank >= name->ranks) continue;
      Tensor part = Tensor::like(shard.data);
      stored_errors.emplace_back(name->tensor(), shard.box, part);
      sums.push_back(shard.data);
    }
    if (auto damage = reader.load(stored_errors, ranks)) return damage;
    for (std::size_t i = 0; i < sums.size(); ++i) ops::add_to(stored_errors[i].data, sums[i]);
  }
  return std::nullopt;
}

namespace {

/// Checkpoint that a run may start from. If `is_local`, it is this rank's part in the local tier.
struct Candidate {
  Path path;
  bool is_local = false;
  i64 iteration() const { return *iteration_of(path.filename().string()); }
};

/// Returns true if the path is a checkpoint itself, not a folder of checkpoints, as seen by rank 0. Identical on all
/// ranks.
bool is_checkpoint(const Path& path, Communicator& world) {
  return broadcast_from_rank0(world, [&] { return stored_file_exists(path / kManifestName); });
}

std::vector<Candidate> list_checkpoints(const Path& folder, Communicator& world) {
  std::vector<Candidate> candidates;
  for (const Path& path : load_candidates(folder, world)) candidates.push_back({path});
  return candidates;
}

/// Returns the checkpoints of both tiers that the run itself saved, newest first.
std::vector<Candidate> own_candidates(const CheckpointConfig& config, Communicator& world, const Log& log) {
  std::vector<Candidate> locals, all;
  for (const Path& part : local_parts(config, world, log)) locals.push_back({part, /*is_local=*/true});
  auto local = locals.begin();
  for (const Candidate& shared : list_checkpoints(config.save, world)) {
    for (; local != locals.end() && local->iteration() > shared.iteration(); ++local) all.push_back(*local);
    all.push_back(shared);
  }
  all.insert(all.end(), local, locals.end());
  return all;
}

std::optional<Damage> try_checkpoint(const Candidate& candidate, Communicator& world, const Log& log,
                                     const ReadCheckpointFn& use) {
  if (!candidate.is_local) {
    if (auto damage = find_damage(candidate.path, world)) return damage;
  }
  std::unique_ptr<CheckpointReader> reader;
  std::string manifest;
  run_on_all_ranks(world, [&] {
    reader = std::make_unique<CheckpointReader>(candidate.path);
    if (!candidate.is_local) manifest = read_stored_text(candidate.path / kManifestChecksumName);
  });
  if (!is_identical_on_ranks(manifest, world)) {
    const std::vector<std::string> all = all_gather_strings(manifest, world);
    const auto other = std::ranges::find_if(all, [&](const std::string& one) { return one != all[0]; });
    fail(ExitCode::BadInput, candidate.path.string(), ": rank ", other - all.begin(),
         " sees a different checkpoint than rank 0; all nodes must see the same folder");
  }
  reader->set_listener(make_progress_listener(log, "loading " + candidate.path.string()));
  return use(*reader);
}

/// Returns the first candidate that `use` finds intact. Logs a warning for each damaged one before it.
std::optional<Path> use_first_intact(const std::vector<Candidate>& candidates, Communicator& world, const Log& log,
                                     const ReadCheckpointFn& use) {
  for (const Candidate& candidate : candidates) {
    const std::optional<Damage> damage = try_checkpoint(candidate, world, log, use);
    if (!damage) return candidate.path;
    log.warn(damage_warning(candidate.path, damage->text));
  }
  return std::nullopt;
}

void add_expert_biases(const GPTModel& model, std::vector<NamedShard>& shards) {
  for (const auto& [layer, router] : model.routers()) {
    const Tensor* bias = router->expert_bias();
    if (bias) shards.emplace_back(model_tensor(router->bias_name()), slab(bias->shape(), 0, 0, bias->numel()), *bias);
  }
}

constexpr const char* kNotFinite = " has NaN or infinite values; cannot train from it";

/// Prefix of the weights of multi-token prediction, which only training uses.
constexpr std::string_view kMtpPrefix = "mtp.";

/// Throws BadInput if the checkpoint has weights that no rank needs, which means that it has a different model. Weights
/// whose names begin with `ignored` are not checked; "" = all weights are checked.
void check_all_used(const CheckpointReader& reader, std::span<const NamedShard> targets, Communicator& world,
                    std::string_view ignored = "") {
  std::set<std::string, std::less<>> local_names;
  for (const NamedShard& target : targets) local_names.insert(target.name);
  const std::vector<TensorEntry>& tensors = reader.manifest().tensors;
  CpuDevice host;
  Tensor is_used = Tensor::empty({std::ssize(tensors)}, DType::I32, host, MemoryClass::Other);
  for (std::size_t i = 0; i < tensors.size(); ++i) is_used.data<i32>()[i] = local_names.contains(tensors[i].name);
  world.all_reduce(is_used, ReduceOp::Max).wait();
  std::vector<std::string> unused;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i].name;
    if (!name.starts_with(model_tensor("")) || is_used.data<i32>()[i] != 0) continue;
    if (ignored.empty() || !name.starts_with(model_tensor(ignored))) unused.push_back(name);
  }
  check_input(
      unused.empty(), reader.directory().string(), ": ", unused.empty() ? "" : unused[0],
      unused.size() > 1 ? str(" and ", unused.size() - 1, " more tensors have") : std::string(" has"),
      " no counterpart in this model; `megatron_cpp checkpoint show --toml` prints the one that it was saved from");
}

/// Logs that the averaged weights begin or end with this start.
void log_changed_ema(bool is_kept, bool is_saved, const Log& log) {
  if (is_kept && !is_saved)
    log.info("optimizer.ema_decay: the checkpoint has no averaged weights; the average starts from its weights");
  if (!is_kept && is_saved)
    log.info("optimizer.ema_decay: is 0; the averaged weights of the checkpoint are not continued");
}

std::optional<Damage> load_all(const RunContext& run, TrainingState& state, CheckpointReader& reader,
                               const DatasetIdentities& datasets, TrainingProgress& progress) {
  Communicator& world = run.world();
  run_on_all_ranks(world, [&] { progress = saved_progress(run.config, datasets, reader, run.log); });
  std::vector<NamedShard> shards = shards_to_load(state);
  std::vector<NamedShard> unsaved = extract_unsaved(shards, reader);
  const UnsavedStates started = remove_unsaved_states(shards, reader);
  check_all_used(reader, shards, world);
  const LoadingRanks ranks{world, *run.session.node};
  if (auto damage = reader.load(shards, ranks)) return damage;
  if (auto damage = load_redistributed_errors(unsaved, reader, ranks)) return damage;
  if (started.has_master) state.optimizer().copy_model_to_master();
  if (started.has_ema) state.optimizer().start_ema();
  for (const NamedShard& history : started.amax_histories) {
    Tensor values = history.data;
    ops::fill_zero(values);
  }
  state.publish_weights();
  restore_counters(run.config, state, reader, run.log);
  run.log.info(str("resuming from ", reader.directory().string()));
  log_changed_ema(state.optimizer().has_ema(), has_ema(reader.manifest()), run.log);
  CpuDevice host;
  if (reduce_scalar(started.amax_histories.empty() ? 0 : 1, ReduceOp::Max, world, host) > 0)
    run.log.info(
        "layers with the recipe \"delayed\" have no history of this length in the checkpoint; their scales in the "
        "first step are those of \"tensorwise\"");
  return std::nullopt;
}

/// Loads the weights for a run whose optimizer then starts from them.
std::optional<Damage> load_weights(const RunContext& run, TrainingState& state, CheckpointReader& reader) {
  Communicator& world = run.world();
  run_on_all_ranks(world, [&] { check_weights(run.config, reader, run.log); });
  std::vector<NamedShard> shards;
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.memory->visit_stored_weights([&](const Param& param, i64 first, const auto& values) {
      shards.emplace_back(model_tensor(param.name), param.box, first, first + values.numel(), values);
    });
    add_expert_biases(*chunk.model, shards);
  }
  check_all_used(reader, shards, world, run.config.model.mtp_num_layers == 0 ? kMtpPrefix : "");
  if (auto damage = reader.load(shards, {world, *run.session.node}, Conversion::Convert)) return damage;
  state.publish_weights();
  const std::string bad = find_nonfinite_weight(state, world, *run.session.device);
  check_input(bad.empty(), reader.directory().string(), ": ", bad, kNotFinite);
  state.optimizer().copy_model_to_master();
  state.optimizer().start_ema();
  run.log.info(str("starting from the weights of ", reader.directory().string()));
  return std::nullopt;
}

/// Reason to read one of the run's own checkpoints.
enum class LoadPurpose : u8 { Resume, RollBack, RollBackToInterim, Check };

/// Use of the checkpoint that a run starts from: it is loaded or, in a dry run, only compared with the run.
struct CheckpointUses {
  std::function<std::optional<Damage>(CheckpointReader&, TrainingProgress&)> use_all;
  std::function<std::optional<Damage>(CheckpointReader&, TrainingProgress&)> use_weights;
  std::function<LocalPartsStatus(const Path&)> inspect_local_parts;
};

/// Result of use_own_checkpoint(): the progress of the newest intact checkpoint, and the number of damaged ones.
struct OwnCheckpoint {
  std::optional<TrainingProgress> progress = {};
  int damaged = 0;
};

/// Returns true if a candidate, as seen by rank 0, was saved only because the run was stopped there.
bool is_interim(const Candidate& candidate, Communicator& world) {
  return !candidate.is_local && broadcast_from_rank0(world, [&] { return is_interim_checkpoint(candidate.path); });
}

/// Uses the newest intact checkpoint of both tiers. A rollback skips checkpoints that an uninterrupted run would not
/// have, so that a resumed run and an uninterrupted run roll back to the same weights.
OwnCheckpoint use_own_checkpoint(const CheckpointConfig& config, const CheckpointUses& uses, Communicator& world,
                                 const Log& log, LoadPurpose purpose) {
  OwnCheckpoint result;
  for (const Candidate& candidate : own_candidates(config, world, log)) {
    const Path& path = candidate.path;
    if (purpose == LoadPurpose::RollBack && is_interim(candidate, world)) continue;
    const LocalPartsStatus parts = candidate.is_local ? uses.inspect_local_parts(path) : LocalPartsStatus::Usable;
    result.damaged += parts == LocalPartsStatus::Damaged;
    if (parts != LocalPartsStatus::Usable) continue;
    TrainingProgress progress;
    const auto damage =
        try_checkpoint(candidate, world, log, [&](CheckpointReader& reader) { return uses.use_all(reader, progress); });
    if (!damage) {
      run_on_rank0(world, [&] {
        if (!candidate.is_local && purpose == LoadPurpose::Resume) advance_latest(path);
      });
      progress.is_saved = !candidate.is_local;
      result.progress = std::move(progress);
      return result;
    }
    log.warn(candidate.is_local ? local_damage_warning(path, *damage) : damage_warning(path, damage->text));
    ++result.damaged;
  }
  return result;
}

/// Returns the progress of the newest intact checkpoint of this run, or std::nullopt if it has none. Throws if
/// checkpoints exist but all of them are damaged, so that training never silently starts from scratch.
std::optional<TrainingProgress> resume_own(const CheckpointConfig& config, const CheckpointUses& uses,
                                           Communicator& world, const Log& log, LoadPurpose purpose) {
  const OwnCheckpoint result = use_own_checkpoint(config, uses, world, log, purpose);
  check_input(result.progress || result.damaged == 0, config.save, config.local_save.empty() ? "" : " and ",
              config.local_save, ": all checkpoints of this run (", result.damaged,
              ") are damaged; replace them with intact copies, or move them to start from scratch");
  return result.progress;
}

/// Throws BadInput if a folder without checkpoints has other content. The folder of a run contains its lock.
void check_no_other_content(const Path& load) {
  std::error_code error;
  if (is_s3_path(load) || !std::filesystem::exists(load, error) || std::filesystem::exists(load / kLockName, error))
    return;
  const bool is_empty = std::filesystem::is_directory(load, error) && std::filesystem::is_empty(load, error) && !error;
  check_input(
      is_empty, "checkpoint.load: ", load.string(),
      ": contains no checkpoint, but other files; set it to a checkpoint or a folder of checkpoints (`megatron_cpp "
      "checkpoint import-hf` creates one from a Hugging Face model), or leave it empty to start from scratch");
}

/// Uses the checkpoint at this path or, for a folder of checkpoints, the newest one.
std::optional<TrainingProgress> start_from(const CheckpointConfig& config, const CheckpointUses& uses,
                                           Communicator& world, const Log& log) {
  const Path load = config.load;
  const bool must_exist = config.exit_on_missing_checkpoint || config.finetune;
  if (!must_exist && !is_checkpoint(load, world) && list_checkpoints(load, world).empty()) {
    run_on_rank0(world, [&] { check_no_other_content(load); });
    log.info(str(load.string(), ": no checkpoint yet; training starts from scratch"));
    return std::nullopt;
  }
  TrainingProgress progress;
  use_checkpoint(load, world, log, [&](CheckpointReader& reader) {
    return config.finetune ? uses.use_weights(reader, progress) : uses.use_all(reader, progress);
  });
  return progress;
}

/// Finds the checkpoint that a run starts from and uses it.
std::optional<TrainingProgress> start_training(const CheckpointConfig& config, const CheckpointUses& uses,
                                               Communicator& world, const Log& log, LoadPurpose purpose) {
  // The run's own checkpoints come first, so that an interrupted run can continue with the same command. Only a single
  // checkpoint named by checkpoint.load takes precedence.
  const bool names_checkpoint = !config.load.empty() && is_checkpoint(config.load, world);
  if (!config.save.empty() && (config.finetune || !names_checkpoint)) {
    if (const auto progress = resume_own(config, uses, world, log, purpose)) return progress;
  }
  if (config.load.empty()) return std::nullopt;
  return start_from(config, uses, world, log);
}

/// Makes the newest local checkpoint available on the nodes of its ranks, unless checkpoint.save has a newer one.
void restore_local_parts(const RunContext& run) {
  const CheckpointConfig& config = run.config.checkpoint;
  const std::vector<Candidate> shared = list_checkpoints(config.save, run.world());
  const i64 newest_shared = shared.empty() ? 0 : shared.front().iteration();
  restore_parts(local_store(config, run.session), newest_shared, run.world(), run.log);
}

CheckpointUses loading_uses(const RunContext& run, const DatasetIdentities& datasets, TrainingState& state) {
  return {.use_all = [&](CheckpointReader& reader,
                         TrainingProgress& progress) { return load_all(run, state, reader, datasets, progress); },
          .use_weights =
              [&](CheckpointReader& reader, TrainingProgress& progress) {
                progress.special_tokens = load_special_tokens(run.config, reader, run.log);
                return load_weights(run, state, reader);
              },
          .inspect_local_parts =
              [&](const Path& part) {
                return inspect_local_parts(part, run.config.checkpoint, state, run.world(), run.log);
              }};
}

}  // namespace

std::optional<TrainingProgress> load_training(const RunContext& run, const DatasetIdentities& datasets,
                                              TrainingState& state) {
  if (run.config.checkpoint.local_replicas > 0) restore_local_parts(run);
  return start_training(run.config.checkpoint, loading_uses(run, datasets, state), run.world(), run.log,
                        LoadPurpose::Resume);
}

i64 newest_own_iteration(const CheckpointConfig& config, Communicator& world, const Log& log) {
  if (config.save.empty()) return 0;
  const std::vector<Candidate> candidates = own_candidates(config, world, log);
  return candidates.empty() ? 0 : candidates.front().iteration();
}

std::optional<TrainingProgress> check_start_checkpoint(const Config& config, const DatasetIdentities& datasets,
                                                       Communicator& world, const Log& log) {
  const auto compare = [&](CheckpointReader& reader, const std::function<void()>& check) -> std::optional<Damage> {
    run_on_all_ranks(world, [&] { check(); });
    log.info(str("would start from ", reader.directory().string()));
    return std::nullopt;
  };
  const CheckpointUses uses{
      .use_all =
          [&](CheckpointReader& reader, TrainingProgress& progress) {
            return compare(reader, [&] { progress = saved_progress(config, datasets, reader, log); });
          },
      .use_weights = [&](CheckpointReader& reader,
                         TrainingProgress&) { return compare(reader, [&] { check_weights(config, reader, log); }); },
      .inspect_local_parts = [](const Path&) { return LocalPartsStatus::Foreign; }};
  CheckpointConfig shared = config.checkpoint;
  shared.local_save.clear();  // whether its parts fit is known only with the state
  return start_training(shared, uses, world, log, LoadPurpose::Check);
}

TrainingProgress reload_training(const RunContext& run, const DatasetIdentities& datasets, TrainingState& state) {
  const CheckpointUses uses = loading_uses(run, datasets, state);
  const CheckpointConfig& config = run.config.checkpoint;
  OwnCheckpoint result = use_own_checkpoint(config, uses, run.world(), run.log, LoadPurpose::RollBack);
  // A checkpoint that an uninterrupted run would not have is better than none.
  if (!result.progress) result = use_own_checkpoint(config, uses, run.world(), run.log, LoadPurpose::RollBackToInterim);
  if (!result.progress) fail(ExitCode::TrainingFailed, config.save, ": no intact checkpoint to roll back to");
  return *result.progress;
}

Path use_checkpoint(const Path& folder_or_checkpoint, Communicator& world, const Log& log,
                    const ReadCheckpointFn& use) {
  if (is_checkpoint(folder_or_checkpoint, world)) {
    const std::optional<Damage> damage = try_checkpoint({folder_or_checkpoint}, world, log, use);
    if (damage) fail(ExitCode::BadInput, damage->text);
    return folder_or_checkpoint;
  }
  const std::vector<Candidate> candidates = list_checkpoints(folder_or_checkpoint, world);
  const std::optional<Path> path = use_first_intact(candidates, world, log, use);
  check_input(path.has_value(), folder_or_checkpoint.string(),
              candidates.empty() ? ": contains no checkpoint; specify a checkpoint or a folder of checkpoints"
                                 : ": all of its checkpoints are damaged");
  return *path;
}

Path find_checkpoint(const Path& folder_or_checkpoint, const Log& log) {
  const auto self = make_self_communicator();
  return use_checkpoint(folder_or_checkpoint, *self, log, [&](CheckpointReader& reader) {
    return find_damage(reader.directory(), *self, /*should_verify_checksums=*/true);
  });
}

std::optional<Damage> load_weights(CheckpointReader& reader, GPTModel& model, const LoadingRanks& ranks,
                                   WeightSource source) {
  check_has_weights(reader, source);
  std::vector<NamedShard> shards;
  model.visit([&](const Param& param, int) { shards.emplace_back(model_tensor(param.name), param.box, param.value); });
  for (const auto& [layer, router] : model.routers()) router->allocate_state();
  add_expert_biases(model, shards);
  check_all_used(reader, shards, ranks.world, kMtpPrefix);
  for (NamedShard& shard : shards)
    shard.name = weight_tensor(reader.manifest(), source, shard.name.substr(model_tensor("").size()));
  if (auto damage = reader.load(shards, ranks, Conversion::Convert)) return damage;
  model.visit([&](const Param& param, int) {
    check_input(std::isfinite(ops::sum_of_squares(param.value)), reader.directory().string(), ": ", param.name,
                kNotFinite);
  });
  return std::nullopt;
}

}  // namespace mcpp
