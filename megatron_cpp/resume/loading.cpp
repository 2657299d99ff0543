#include "megatron_cpp/resume/loading.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>

#include "checkpoint/folder/exchange.h"
#include "checkpoint/folder/folder.h"
#include "checkpoint/load/shown_reading.h"
#include "megatron_cpp/resume/local_checkpoint.h"
#include "megatron_cpp/resume/power_sgd_memory.h"
#include "megatron_cpp/step/finite_check.h"
#include "megatron_cpp/step/training_shards.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

/// A checkpoint that a run may start from; `is_local`: this rank's part in the local tier.
struct Candidate {
  Path path;
  bool is_local = false;
  i64 iteration() const { return *iteration_of(path.filename().string()); }
};

/// Whether the path is a checkpoint itself, not a folder of some: as rank 0 sees it, so that all go the same way.
bool is_checkpoint(const Path& path, Communicator& world) {
  return from_first(world, [&] { return str(std::filesystem::exists(path / kManifestName)); }) == str(true);
}

std::vector<Candidate> saved_in(const Path& folder, Communicator& world, const Log& log) {
  std::vector<Candidate> candidates;
  for (const Path& path : checkpoints_to_try(folder, world, log)) candidates.push_back({path});
  return candidates;
}

/// What the run itself saved, in both tiers: a local one comes before what is older than it.
std::vector<Candidate> own_candidates(const CheckpointConfig& config, Communicator& world, const Log& log) {
  std::vector<Candidate> locals, all;
  for (const Path& part : local_parts(config, world, log)) locals.push_back({part, /*is_local=*/true});
  auto local = locals.begin();
  for (const Candidate& shared : saved_in(config.save, world, log)) {
    for (; local != locals.end() && local->iteration() > shared.iteration(); ++local) all.push_back(*local);
    all.push_back(shared);
  }
  all.insert(all.end(), local, locals.end());
  return all;
}

std::optional<Damage> try_checkpoint(const Candidate& candidate, Communicator& world, const Log& log,
                                     const CheckpointUse& use) {
  if (!candidate.is_local) {
    if (auto damage = defect_of_files(candidate.path, world)) return damage;
  }
  std::unique_ptr<CheckpointReader> reader;
  const std::vector<std::string> manifests = run_together(world, [&] {
    reader = std::make_unique<CheckpointReader>(candidate.path);
    return candidate.is_local ? std::string() : read_text_file(candidate.path / kManifestChecksumName);
  });
  const auto other = std::ranges::find_if(manifests, [&](const std::string& one) { return one != manifests[0]; });
  check_input(other == manifests.end(), candidate.path.string(), ": rank ", other - manifests.begin(),
              " finds another checkpoint there than rank 0; all nodes must see the same folder");
  reader->set_listener(shown_reading(log, "loading " + candidate.path.string()));
  return use(*reader);
}

/// The first that `use` finds sound; a warning for each that it does not.
std::optional<Path> first_sound(const std::vector<Candidate>& candidates, Communicator& world, const Log& log,
                                const CheckpointUse& use) {
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

constexpr const char* kNotFinite = " holds NaN or infinite numbers: no model to go on from";

/// Throws BadInput when the checkpoint has weights that no rank wants: then it is another model's.
void check_all_used(const CheckpointReader& reader, std::span<const NamedShard> targets, Communicator& world) {
  std::vector<std::string> mine;
  for (const NamedShard& target : targets) mine.push_back(target.name);
  std::set<std::string, std::less<>> wanted;
  for (const std::string& names : run_together(world, [&] { return join(mine, "\n"); })) {
    for (std::string& name : split(names, '\n')) wanted.insert(std::move(name));
  }
  std::vector<std::string> left;
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    if (tensor.name.starts_with(model_tensor("")) && !wanted.contains(tensor.name)) left.push_back(tensor.name);
  }
  check_input(left.empty(), reader.directory().string(), ": ", left.empty() ? "" : left[0],
              left.size() > 1 ? str(" and ", left.size() - 1, " more tensors have") : std::string(" has"),
              " no place in this model; `megatron_cpp checkpoint show --toml` prints the one that it was saved from");
}

std::optional<Damage> load_all(const Config& config, TrainingState& state, CheckpointReader& reader,
                               const DatasetIdentities& datasets, Session& session, const Log& log,
                               TrainingProgress& progress) {
  Communicator& world = session.parallel.world;
  run_together(world, [&] {
    progress = saved_progress(config, datasets, reader, log);
    return std::string();
  });
  std::vector<NamedShard> shards = shards_to_load(state);
  std::vector<NamedShard> unsaved = take_out_unsaved(shards, reader);
  check_all_used(reader, shards, world);
  const LoadingRanks ranks{world, *session.node};
  if (auto damage = reader.load(shards, ranks)) return damage;
  if (auto damage = load_errors_of_others(unsaved, reader, ranks)) return damage;
  state.publish_weights();
  restore_counters(config, state, reader, log);
  log.info(str("resuming from ", reader.directory().string()));
  return std::nullopt;
}

/// For a training, whose optimizer then starts from them.
std::optional<Damage> load_weights(const Config& config, TrainingState& state, CheckpointReader& reader,
                                   Session& session, const Log& log) {
  Communicator& world = session.parallel.world;
  run_together(world, [&] {
    check_weights(config, reader, log);
    return std::string();
  });
  std::vector<NamedShard> shards;
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.memory->visit_stored_weights([&](const Param& param, i64 first, const auto& values) {
      shards.emplace_back(model_tensor(param.name), param.box, first, first + values->numel(), values);
    });
    add_expert_biases(*chunk.model, shards);
  }
  check_all_used(reader, shards, world);
  if (auto damage = reader.load(shards, {world, *session.node}, Conversion::Convert)) return damage;
  state.publish_weights();
  const std::string bad = weight_that_is_not_finite(state, world, *session.device);
  check_input(bad.empty(), reader.directory().string(), ": ", bad, kNotFinite);
  state.optimizer().copy_model_to_master();
  log.info(str("starting from the weights of ", reader.directory().string()));
  return std::nullopt;
}

/// The newest sound one of both tiers; nothing when there are none that are this run's. Where there were some and all
/// are damaged, nobody should train on from the beginning, unless on purpose.
std::optional<TrainingProgress> resume_own(const Config& config, TrainingState& state,
                                           const DatasetIdentities& datasets, Session& session, const Log& log) {
  Communicator& world = session.parallel.world;
  int damaged = 0;
  for (const Candidate& candidate : own_candidates(config.checkpoint, world, log)) {
    const Path& path = candidate.path;
    const LocalParts parts =
        candidate.is_local ? examine_local(path, config.checkpoint, state, world, log) : LocalParts::Usable;
    damaged += parts == LocalParts::Damaged;
    if (parts != LocalParts::Usable) continue;
    TrainingProgress progress;
    const auto damage = try_checkpoint(candidate, world, log, [&](CheckpointReader& reader) {
      return load_all(config, state, reader, datasets, session, log, progress);
    });
    if (!damage) {
      from_first(world, [&] {
        if (!candidate.is_local) move_latest_up_to(path);
        return std::string();
      });
      progress.is_saved = !candidate.is_local;
      return progress;
    }
    log.warn(candidate.is_local ? local_damage_warning(path, *damage) : damage_warning(path, damage->text));
    ++damaged;
  }
  const std::string& local = config.checkpoint.local_save;
  check_input(damaged == 0, config.checkpoint.save, local.empty() ? "" : " and " + local,
              ": all checkpoints of this run (", damaged,
              ") are damaged; put a sound copy in their place, or move them away to start anew");
  return std::nullopt;
}

/// The newest of a folder, or the one that the path names.
std::optional<TrainingProgress> start_from(const Path& load, const Config& config, TrainingState& state,
                                           const DatasetIdentities& datasets, Session& session, const Log& log) {
  Communicator& world = session.parallel.world;
  const CheckpointConfig& checkpoint = config.checkpoint;
  const bool must_exist = checkpoint.exit_on_missing_checkpoint || checkpoint.finetune;
  if (!must_exist && !is_checkpoint(load, world) && saved_in(load, world, log).empty()) {
    log.info(str(load.string(), ": no checkpoint there yet; training starts anew"));
    return std::nullopt;
  }
  TrainingProgress progress;
  use_checkpoint(load, world, log, [&](CheckpointReader& reader) {
    if (!checkpoint.finetune) return load_all(config, state, reader, datasets, session, log, progress);
    progress.special_tokens = special_tokens_of(reader.state(), reader.directory().string());
    return load_weights(config, state, reader, session, log);
  });
  return progress;
}

}  // namespace

std::optional<TrainingProgress> load_training(const Config& config, const DatasetIdentities& datasets,
                                              TrainingState& state, Session& session, const Log& log) {
  Communicator& world = session.parallel.world;
  const CheckpointConfig& checkpoint = config.checkpoint;
  // What the run itself saved comes first, so that it can be interrupted wherever it once started from; only who names
  // one checkpoint to resume from means that one.
  const bool names_one = !checkpoint.load.empty() && is_checkpoint(checkpoint.load, world);
  if (!checkpoint.save.empty() && (checkpoint.finetune || !names_one)) {
    if (const auto progress = resume_own(config, state, datasets, session, log)) return progress;
  }
  if (checkpoint.load.empty()) return std::nullopt;
  return start_from(checkpoint.load, config, state, datasets, session, log);
}

TrainingProgress reload_training(const Config& config, const DatasetIdentities& datasets, TrainingState& state,
                                 Session& session, const Log& log) {
  Communicator& world = session.parallel.world;
  TrainingProgress progress;
  const auto found = first_sound(
      saved_in(config.checkpoint.save, world, log), world, log,
      [&](CheckpointReader& reader) { return load_all(config, state, reader, datasets, session, log, progress); });
  if (!found) fail(ExitCode::TrainingFailed, config.checkpoint.save, ": no sound checkpoint to go back to");
  return progress;
}

Path use_checkpoint(const Path& folder_or_checkpoint, Communicator& world, const Log& log, const CheckpointUse& use) {
  if (is_checkpoint(folder_or_checkpoint, world)) {
    const std::optional<Damage> damage = try_checkpoint({folder_or_checkpoint}, world, log, use);
    if (damage) fail(ExitCode::BadInput, damage->text);
    return folder_or_checkpoint;
  }
  const std::vector<Candidate> candidates = saved_in(folder_or_checkpoint, world, log);
  const std::optional<Path> found = first_sound(candidates, world, log, use);
  check_input(found.has_value(), folder_or_checkpoint.string(),
              candidates.empty() ? ": no checkpoint there; give a checkpoint, or a folder that holds some"
                                 : ": all of its checkpoints are damaged");
  return *found;
}

Path find_checkpoint(const Path& folder_or_checkpoint, const Log& log) {
  const auto self = make_self_communicator();
  return use_checkpoint(folder_or_checkpoint, *self, log, [&](CheckpointReader& reader) {
    return defect_of_files(reader.directory(), *self, /*checksums=*/true);
  });
}

std::optional<Damage> load_weights(CheckpointReader& reader, GPTModel& model, const LoadingRanks& ranks) {
  std::vector<NamedShard> shards;
  model.visit([&](const Param& param, int) { shards.emplace_back(model_tensor(param.name), param.box, param.value); });
  for (const auto& [layer, router] : model.routers()) router->make_state();
  add_expert_biases(model, shards);
  check_all_used(reader, shards, ranks.world);
  if (auto damage = reader.load(shards, ranks, Conversion::Convert)) return damage;
  model.visit([&](const Param& param, int) {
    check_input(std::isfinite(ops::sum_of_squares(param.value)), reader.directory().string(), ": ", param.name,
                kNotFinite);
  });
  return std::nullopt;
}

}  // namespace mcpp
