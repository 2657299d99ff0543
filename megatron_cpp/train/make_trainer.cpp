#include "checkpoint/directory/folder.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/train/trainer.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

/// Throws BadInput, on all ranks, if optimizer.offload_fraction is so small that no rank offloads any state.
/// Collective.
void check_offload(const OptimizerConfig& config, const Optimizer& optimizer, Communicator& world) {
  if (config.offload == OffloadTier::Device || config.offload_fraction == 1) return;
  const OffloadedBytes offloaded = optimizer.offloaded_state_bytes();
  CpuDevice host;
  const auto local_bytes = static_cast<double>(offloaded.in_host + offloaded.on_disk);
  check_input(reduce_scalar(local_bytes, ReduceOp::Sum, world, host) > 0,
              "optimizer.offload_fraction: ", config.offload_fraction,
              " offloads nothing, because it is less than one segment; increase it, decrease "
              "optimizer.offload_segment_size, or remove optimizer.offload");
}

/// Returns true if a run with this progress can start in the stage of `config`. If `is_continued`, the stage before it
/// has just ended in this process.
bool can_start(const Config& config, const TrainingProgress& progress, bool is_continued) {
  if (!config.stage) return true;
  const i64 iteration = progress.iteration;
  return config.stage->resumes_at(iteration) || (is_continued && iteration == config.stage->first_iteration);
}

/// Updates the progress for the stage of `config`, in which the run starts or continues. Throws BadInput if the run
/// read its datasets differently so far.
void begin_stage(const Config& config, const std::vector<std::vector<i64>>& text_starts, TrainingProgress& progress) {
  if (!config.stage) return;
  check_text_starts(config, progress.stage, text_starts);
  if (progress.stage.number == config.stage->number) return;
  progress.stage = {.number = config.stage->number,
                    .trained_iterations = progress.trained_iterations(),
                    .text_starts = text_starts.empty() ? std::vector<i64>() : text_starts.back()};
}

void log_offloading(const TrainingState& state, const Log& log) {
  if (const std::string states = state.optimizer().describe_states(); !states.empty())
    log.info("optimizer state: " + states);
  if (const ActivationStore* activations = state.activations()) log.info("activations: " + activations->describe());
}

/// Exports the checkpoints that the saver completes, if the configuration requires it, until a signal asks the run to
/// stop. Returns null on ranks other than 0.
std::unique_ptr<HuggingfaceExports> start_exports(const Config& config, CheckpointSaver& saver, Communicator& world,
                                                  const SignalWatch& signals, const Log& log) {
  if (config.checkpoint.export_hf_interval == 0) return nullptr;
  std::unique_ptr<HuggingfaceExports> exports;
  run_on_rank0(world, [&] { exports = std::make_unique<HuggingfaceExports>(config, std::cref(log)); });
  if (!exports) return nullptr;
  saver.set_listener([exports = exports.get(), &signals](const Path& checkpoint) {
    if (signals.received() == 0 && exports->is_due(*iteration_of(checkpoint.filename().string())))
      exports->start(checkpoint);
  });
  saver.set_reader([exports = exports.get()] { return exports->in_use(); });
  return exports;
}

}  // namespace

StartedTraining make_trainer(const Config& config, Session& session, const SignalWatch& signals, const Log& log,
                             const std::optional<PredictedStep>& predicted, const FolderLock* lock, bool is_continued) {
  Communicator& world = session.parallel.world;
  TrainerParts parts;
  // First find errors that would otherwise end the run at its first log line or trace.
  parts.logger = std::make_unique<TrainingLogger>(config, session, log, predicted);
  parts.trace = std::make_unique<TraceWindow>(std::cref(config.logging), config.profile_path(), session, log);
  parts.logger->find_peak();  // before the model, because measuring takes memory that the model needs
  const RunContext run{.config = config, .session = session, .log = log, .logger = *parts.logger};

  parts.sources = {.tokenizer_checksum = tokenizer_checksum(config, session),
                   .datasets = identify_datasets(config, world)};
  parts.state = std::make_unique<TrainingState>(model_provider(config, session), config.optimizer, session.parallel,
                                                storage_provider(config, session));
  if (auto progress = load_training(run, parts.sources.datasets, *parts.state)) parts.progress = std::move(*progress);
  const TrainingProgress& progress = parts.progress;
  if (!can_start(config, progress, is_continued)) return {.trainer = nullptr, .iteration = progress.iteration};
  parts.end = config.training_end(progress.iteration, progress.consumed_samples);
  parts.saver = std::make_unique<CheckpointSaver>(run, std::cref(*parts.state), progress, parts.sources, lock);
  parts.exports = start_exports(config, *parts.saver, world, signals, log);

  const SharedIndexRanks index_ranks(world, *session.node, [&] { return signals.received(); });
  parts.datasets =
      std::make_unique<Datasets>(dataset_provider(config, config.dataset_samples(parts.end), index_ranks, log));
  begin_stage(config, parts.datasets->stage_starts, parts.progress);
  parts.schedule.emplace(config);
  parts.step_progress = std::make_unique<StepProgress>(signals, log, config.logging.show_progress);
  parts.state->set_observer(parts.step_progress.get());
  parts.evaluator = std::make_unique<Evaluator>(run, std::cref(*parts.datasets), *parts.state, *parts.step_progress,
                                                progress.special_tokens);
  // Only now, when this run can begin, may its sinks replace the files of a different run, and its tokenizer the
  // tokenizer of that run's checkpoints.
  parts.logger->begin({.iteration = progress.iteration, .consumed_samples = progress.consumed_samples});
  save_tokenizer(config, session, parts.sources.tokenizer_checksum);
  check_offload(config.optimizer, parts.state->optimizer(), world);
  log_offloading(*parts.state, log);
  log_emulated_recipes(config.training, *session.device, log);
  parts.batches =
      std::make_unique<BatchStream>(*parts.datasets->train, config, config.batch_sizes(), progress.consumed_samples,
                                    session, SampleNumbers{.first = config.stage ? config.stage->first_sample : 0});
  session.device->trim();
  return {.trainer = std::make_unique<Trainer>(run, std::move(parts)), .iteration = parts.progress.iteration};
}

}  // namespace mcpp
