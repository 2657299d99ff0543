#include "megatron_cpp/train/trainer.h"

#include <utility>

#include "base/machine.h"
#include "megatron_cpp/monitor/device_warnings.h"
#include "megatron_cpp/monitor/module_memory.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/datasets/shared_index.h"
#include "megatron_cpp/setup/gemm_tuning.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/version.h"
#include "megatron_cpp/step/replica_check.h"
#include "megatron_cpp/step/step_policy.h"
#include "model/flops.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

TrainingLength training_length(const Config& config) {
  // A growing batch requires train_samples, and then no length is counted in iterations, so that any batch size will
  // do.
  return {.train_iters = config.training.train_iters,
          .train_samples = config.training.train_samples,
          .global_batch_size = config.batch_sizes().front().batch_size};
}

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
              "optimizer.offload_segment_size, or leave optimizer.offload out");
}

}  // namespace

Trainer::Trainer(StoredRef<Config> config, Session& session, const SignalWatch& signals, StoredRef<Log> log,
                 const std::optional<PredictedStep>& predicted)
    : config_(config),
      session_(session),
      log_(log),
      watch_(signals, log, config_.logging.show_progress),
      batch_sizes_(config_.batch_sizes()),
      lock_(lock_save_folder(config, session, log)),
      tensorboard_(config, is_first_rank(), log),
      trace_(std::cref(config_.logging), config_.profile_path(), session, log),
      peak_(find_device_peak(config, session, log)),
      step_logger_({.tokens = static_cast<double>(config_.model.seq_length),
                    .flops = flops_per_batch(config_.model, 1),
                    .peak_tflops = peak_.tflops,
                    .is_peak_measured = peak_.source == DevicePeak::Source::Measured,
                    .devices = session.parallel.world.size()},
                   peak_, config, session, log, predicted),
      sources_{.tokenizer_checksum = tokenizer_checksum(config, session),
               .datasets = identify_datasets(config, session.parallel.world)},
      state_(model_provider(config, session), config_.optimizer, layout_provider(config, session)),
      statistics_(std::cref(config_.logging), state_, session.parallel.world, [this](i64 i) { return should_log(i); }),
      progress_(load_training(config, sources_.datasets, state_, session, log).value_or(TrainingProgress{})),
      end_(config_.training_end(progress_.iteration, progress_.consumed_samples)),
      faults_(config_.fault_injection, session.parallel.world.rank()),
      saver_(config, state_, progress_, sources_, session, log, files_, lock_.get()),
      datasets_(dataset_provider(
          config, end_.samples,
          SharedIndexRanks(session.parallel.world, *session.node, [&] { return signals.received(); }), log)),
      schedule_(config_.optimizer, training_length(config)),
      validation_(config, datasets_, session, state_, watch_, progress_.special_tokens, metrics_, tensorboard_, log),
      metrics_(is_first_rank() ? config_.metrics_path() : Path(), progress_.iteration, log) {
  save_tokenizer(config, session, sources_.tokenizer_checksum);
  tensorboard_.begin({.iteration = progress_.iteration, .consumed_samples = progress_.consumed_samples}, metrics_);
  state_.set_observer(&watch_);
  saver_.set_listener([this](i64 iteration, const std::string& text) {
    metrics_.write(RunEvent{.kind = RunEvent::Kind::Save, .iteration = iteration, .text = text});
  });
  check_offload(config_.optimizer, state_.optimizer(), session.parallel.world);
  if (const std::string states = state_.optimizer().describe_states(); !states.empty())
    log_.info("optimizer state: " + states);
  if (const ActivationStore* activations = state_.activations()) log_.info("activations: " + activations->describe());
  batches_ = std::make_unique<BatchStream>(*datasets_.train, config, batch_sizes_, progress_.consumed_samples, session);
  session.device->trim();
}

ExitCode Trainer::train() {
  step_logger_.begin(timings());
  session_.profiler->enable_timers(static_cast<Detail>(config_.logging.timing_log_level));
  const bool is_done = progress_.iteration >= end_.iterations;
  if (is_done)
    log_.info(str("all ", end_.iterations, " iterations are done; set training.",
                  config_.training.train_iters > 0 ? "train_iters" : "train_samples", " higher to train on"));
  else
    write_start();
  // A rollback needs a checkpoint.
  if (!is_done && config_.can_roll_back() && !progress_.is_saved) save(SaveReason::Start);
  if (!is_done) run_missed_evaluations();
  if (!is_done && signal() == 0) run_iterations();
  if (signal() != 0) log_stop_reason(str("signal ", signal(), " received"));
  session_.enter(Activity::Saving, progress_.iteration);
  saver_.finish();
  if (saver_.must_save(progress_)) save(SaveReason::Stop);
  trace_.write();  // of a window that the end of the training truncated
  if (signal() == 0 && progress_.iteration >= end_.iterations) {
    run_missed_evaluations();
    if (signal() != 0)
      log_.info(str("signal ", signal(), " received: stopping; the next start repeats the evaluation"));
  }
  if (signal() != 0) return ExitCode::Preempted;
  const std::string end = str("ended at iteration ", progress_.iteration, " of ", end_.iterations);
  log_.info(end);  // launch.sh searches for it
  if (!is_done) write_event(RunEvent::Kind::End, end);
  return ExitCode::Done;
}

void Trainer::run_iterations() {
  bool should_stop = false;
  while (iteration() < end_.iterations && !should_stop) {
    if (trace_.is_first_iteration(iteration() + 1)) begin_trace();
    train_step();
    if (must_finish_step()) finish_step();
    if (signal() != 0) break;
    if (trace_.ends_with(iteration())) end_trace();
    if (is_due(config_.training.check_weight_hash_across_dp_replicas_interval))
      check_weights_across_replicas(state_, session_.parallel);
    saver_.poll();
    if (saver_.is_due(iteration())) save(SaveReason::Interval);
    if (is_due(config_.training.eval_interval) && iteration() < end_.iterations) evaluate();
    should_stop = should_exit();
  }
  finish_step();
  if (trace_.is_open()) close_trace();
}

void Trainer::begin_trace() {
  finish_step();
  const RankTimings before = timings();
  trace_.begin(progress_.iteration + 1, [this] { return timings(); });
  exclude_from_timing(before);
}

void Trainer::end_trace() {
  const RankTimings before = timings();
  close_trace();
  trace_.write();
  exclude_from_timing(before);
}

void Trainer::close_trace() {
  trace_.end(
      progress_.iteration, [this] { return timings(); }, module_memory_usage(state_, config_.parallel.zero_stage));
}

/// Saving, evaluating and ending the run require the outcome of all steps.
bool Trainer::must_finish_step() const {
  return step_minutes_ >= kLongStep || iteration() == end_.iterations || saver_.is_due(iteration()) ||
         is_due(config_.training.eval_interval) || is_due(config_.training.exit_interval) ||
         is_due(config_.training.check_weight_hash_across_dp_replicas_interval) || trace_.ends_with(iteration());
}

void Trainer::train_step() {
  const i64 iteration = this->iteration() + 1;
  session_.enter(Activity::Training, iteration);
  watch_.begin(str("iteration ", iteration, "/", end_.iterations));
  // For traces only; the log measures steps itself.
  const TimedRange range(session_.profiler.get(), "train-step", Detail::Layer, {.iteration = iteration});
  faults_.before_step(iteration);
  const std::vector<MicroBatch> batches = next_batches();
  backward(iteration, batches);
  // The outcome of the previous step determines the learning rate, the optimizer's step count and the spike limits. It
  // is awaited here, while the device executes the next forward and backward passes. If it rolled the weights back, or
  // its overflow changed the loss scale, these passes are repeated.
  const bool rolled_back = finish_step();
  if (is_aborted_) return;
  if (rolled_back || state_.needs_backward_rerun()) backward(iteration, batches);
  saver_.wait_for_copy();
  faults_.corrupt(iteration, state_);
  const i64 position = schedule_.position(progress_.trained_iterations(), progress_.trained_samples);
  const StepOptions options{.lr = schedule_.lr(position),
                            .weight_decay = schedule_.weight_decay(position),
                            .rule = make_step_rule(config_.training, progress_.spikes)};
  StepStatistics statistics = statistics_.gradient_statistics(iteration);
  state_.update(options);
  pending_ = {.learning_rate = options.lr,
              .weight_decay = options.weight_decay,
              .batch_size = batch_size_at(batch_sizes_, progress_.consumed_samples),
              .timings = timings(),
              .timers = session_.profiler->take_seconds(),
              .statistics = std::move(statistics)};
}

std::vector<MicroBatch> Trainer::next_batches() {
  const TimedRange range(session_.profiler.get(), "batch-generator", Detail::Phase);
  return batches_->next();
}

void Trainer::backward(i64 iteration, const std::vector<MicroBatch>& batches) {
  statistics_.before_backward(iteration);
  state_.set_exact_reduction(iteration <= config_.parallel.power_sgd_start_iter);
  state_.backward(batches, faults_.loss_grad_factor(iteration));
  statistics_.after_backward();
}

bool Trainer::should_log(i64 iteration) const {
  const LoggingConfig& logging = config_.logging;
  return is_log_iteration(iteration) || logging.metrics_every_iteration ||
         (!logging.tensorboard_dir.empty() && iteration % logging.tensorboard_log_interval == 0);
}

RankTimings Trainer::timings() const {
  return rank_timings(state_, session_.parallel);
}

void Trainer::exclude_from_timing(const RankTimings& since) {
  step_logger_.exclude_from_timing(timings() - since);
}

void Trainer::evaluate() {
  const RankTimings before = timings();
  validation_.evaluate_validation_sets(progress_, /*only_missing=*/false);
  exclude_from_timing(before);
}

void Trainer::run_missed_evaluations() {
  const RankTimings before = timings();
  const bool is_end = progress_.iteration >= end_.iterations;
  const bool is_due_now =
      progress_.iteration > 0 ? is_due(config_.training.eval_interval) : config_.training.eval_on_start;
  if (is_end || is_due_now) validation_.evaluate_validation_sets(progress_, /*only_missing=*/true);
  if (is_end) validation_.evaluate_test_set(progress_);
  log_device_warnings(*session_.device, log_);  // that no later step reports
  exclude_from_timing(before);
}

void Trainer::save(SaveReason reason) {
  session_.enter(Activity::Saving, progress_.iteration);
  const RankTimings before = timings();
  const TimedRange range(session_.profiler.get(), "save-checkpoint", Detail::Phase);
  sync_gemm_algos(config_.device, *session_.device, session_.parallel.world);
  check_before_save();
  const SaveObserver observer = faults_.observer(progress_.iteration);
  const bool is_interim = reason == SaveReason::Stop && config_.can_roll_back() && !saver_.is_due(progress_.iteration);
  if (reason == SaveReason::Interval)
    saver_.save(progress_, observer);
  else
    saver_.save_and_wait(progress_, observer, is_interim);
  exclude_from_timing(before);
}

/// Decides by values that all ranks agreed on in finished steps, so that no communication is needed. train() logs
/// signals.
bool Trainer::should_exit() {
  const TrainingConfig& training = config_.training;
  if (signal() != 0) return true;
  if (training.exit_duration_in_mins > 0 && state_.stop_request().minutes >= training.exit_duration_in_mins) {
    log_stop_reason("training.exit_duration_in_mins has elapsed");
    return true;
  }
  return is_due(training.exit_interval);
}

void Trainer::log_stop_reason(const std::string& reason) {
  const std::string text =
      reason + (config_.checkpoint.save.empty() ? ": stopping; nothing is saved, because checkpoint.save is empty"
                                                : ": saving and stopping");
  log_.info(text);
  write_event(RunEvent::Kind::Stop, text);
}

void Trainer::write_start() {
  metrics_.write(RunStart{.iteration = progress_.iteration,
                          .train_iters = end_.iterations,
                          .world_size = session_.parallel.world.size(),
                          .host = host_name(),
                          .program = split(version_text(), '\n').front(),
                          .device = std::string(enum_name(config_.device.device)),
                          .config = print_config(config_)});
}

}  // namespace mcpp
