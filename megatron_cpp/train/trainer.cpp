#include "megatron_cpp/train/trainer.h"

#include <cmath>
#include <utility>

#include "base/machine.h"
#include "base/number_format.h"
#include "megatron_cpp/monitor/device_warnings.h"
#include "megatron_cpp/monitor/module_memory.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/gemm_tuning.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/version.h"
#include "megatron_cpp/step/state_checks.h"
#include "megatron_cpp/step/step_policy.h"
#include "model/flops.h"
#include "parallel/reduce_scalar.h"

namespace mcpp {
namespace {

/// End of the log line of a run that stops early.
constexpr const char* kContinueHint = "; start the same command again to continue";

TrainingLength training_length(const Config& config) {
  // A growing batch requires train_samples, and then no length is counted in iterations, so that any batch size
  // suffices.
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
              "optimizer.offload_segment_size, or remove optimizer.offload");
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
      state_(model_provider(config, session), config_.optimizer, session.parallel, storage_provider(config, session)),
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
                  config_.training.train_iters > 0 ? "train_iters" : "train_samples", " higher to continue training"));
  else
    write_start();
  // A rollback needs a checkpoint.
  if (!is_done && config_.can_roll_back() && !progress_.is_saved) save(SaveReason::Start);
  if (!is_done) run_missed_evaluations();
  if (!is_done && signal() == 0) run_iterations();
  if (signal() != 0) report_stop(str("signal ", signal(), " received"), /*is_logged=*/watch_.signal() == 0);
  session_.enter(Activity::Saving, progress_.iteration);
  saver_.finish();
  if (saver_.must_save(progress_))
    save(SaveReason::Stop);
  else if (signal() != 0 && !config_.checkpoint.save.empty())
    log_.info(str("iteration ", progress_.iteration, " is already saved", kContinueHint));
  trace_.write();  // of a window that the end of the training truncated
  if (signal() == 0 && progress_.iteration >= end_.iterations) {
    run_missed_evaluations();
    if (signal() != 0) log_.info("the evaluation is canceled; start the same command again to repeat it");
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
  const bool is_unfinished = reason == SaveReason::Stop && progress_.iteration < end_.iterations;
  if (reason == SaveReason::Interval)
    saver_.save(progress_, observer);
  else
    saver_.save_and_wait(progress_, observer, is_interim, is_unfinished ? kContinueHint : "");
  exclude_from_timing(before);
}

/// Decides by values that all ranks agreed on in finished steps, so that no communication is needed. train() reports
/// signals.
bool Trainer::should_exit() {
  const TrainingConfig& training = config_.training;
  if (signal() != 0) return true;
  if (training.exit_duration_in_mins > 0 && state_.stop_request().minutes >= training.exit_duration_in_mins) {
    report_stop("training.exit_duration_in_mins has elapsed", /*is_logged=*/true);
    return true;
  }
  return is_due(training.exit_interval);
}

void Trainer::report_stop(const std::string& reason, bool is_logged) {
  const std::string text =
      reason + (config_.checkpoint.save.empty() ? ": stopping; nothing is saved, because checkpoint.save is empty"
                                                : ": saving and stopping");
  if (is_logged) log_.info(text);
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

// Handling of step outcomes: statistics, and reactions to steps that went wrong.

namespace {

std::string describe(const StepOutcome& outcome) {
  if (outcome.status == StepStatus::Spike) {
    return str("loss or gradient is an outlier: loss ", shortest(outcome.loss), ", gradient norm ",
               shortest(outcome.grad_norm));
  }
  return std::isfinite(outcome.loss) ? "the gradient is not finite" : "the loss is not finite";
}

}  // namespace

bool Trainer::finish_step() {
  if (!pending_) return false;
  PendingStep step = *std::exchange(pending_, std::nullopt);
  const double minutes_before = state_.stop_request().minutes;
  const StepOutcome outcome = state_.outcome();
  step_minutes_ = state_.stop_request().minutes - minutes_before;
  is_aborted_ = outcome.is_aborted;
  if (is_aborted_) {
    log_.info(str("iteration ", progress_.iteration + 1, " is canceled and has no effect"));
    return false;
  }
  progress_.iteration += 1;
  progress_.consumed_samples += step.batch_size;
  progress_.consumed_tokens += outcome.tokens;
  if (!outcome.is_skipped) progress_.trained_samples += step.batch_size;
  if (outcome.status != StepStatus::NotFinite && config_.training.spike_policy != SpikePolicy::Off)
    progress_.spikes.add(outcome.loss, outcome.grad_norm, config_.training.spike_window);
  record(outcome, step);
  log_device_warnings(*session_.device, log_);
  const bool rolled_back = apply_step_policy(outcome, step.batch_size);
  if (is_log_iteration(iteration())) log_iteration();
  return rolled_back;
}

void Trainer::record(const StepOutcome& outcome, PendingStep& step) {
  statistics_.add_weights(progress_.iteration, outcome.grad_norm, step.statistics);
  step_logger_.add({.stats = {.iteration = progress_.iteration,
                              .train_iters = end_.iterations,
                              .consumed_samples = progress_.consumed_samples,
                              .learning_rate = step.learning_rate,
                              .weight_decay = step.weight_decay,
                              .global_batch_size = step.batch_size,
                              .lm_loss = outcome.loss,
                              .loss_scale = state_.loss_scale().value(),
                              .grad_norm = outcome.grad_norm,
                              .skipped_iterations = outcome.is_skipped,
                              .nan_iterations = !std::isfinite(outcome.loss),
                              .mfu = {},
                              .experts = expert_stats(outcome.experts,
                                                      static_cast<double>(step.batch_size * config_.model.seq_length)),
                              .params_norm = step.statistics.params_norm,
                              .num_zeros = step.statistics.num_zeros},
                    .end = step.timings,
                    .timers = std::move(step.timers),
                    .statistics = std::move(step.statistics),
                    .experts = outcome.experts},
                   metrics_, tensorboard_);
}

bool Trainer::apply_step_policy(const StepOutcome& outcome, i64 batch_size) {
  if (outcome.overflow == Overflow::Handled) {
    progress_.skipped_iterations += 1;
    const std::string what =
        str("iteration ", progress_.iteration, ": the gradient overflows; the step is skipped, the loss scale is now ",
            fixed(state_.loss_scale().value(), 1));
    log_.info(what);
    write_event(RunEvent::Kind::Skip, what);
    return false;
  }
  const StepAction action = choose_action(config_.training, outcome.status);
  if (action != StepAction::Skip) progress_.consecutive_skips = 0;
  if (action == StepAction::Continue) return false;
  const std::string what = str("iteration ", progress_.iteration, ": ", describe(outcome)),
                    samples = str(" (samples ", progress_.consumed_samples - batch_size, " to ",
                                  progress_.consumed_samples - 1, ")");
  if (action == StepAction::Warn) {
    log_.warn(what + samples);
    write_event(RunEvent::Kind::Spike, what + samples);
  }
  if (action == StepAction::Skip) count_skip(what + "; the step is skipped, the weights are unchanged" + samples);
  if (action == StepAction::RollBack) roll_back(what + samples);
  if (action == StepAction::Stop) fail_training(what + samples + "; training.nan_policy is \"stop\"");
  return action == StepAction::RollBack;
}

void Trainer::count_skip(const std::string& warning) {
  progress_.skipped_iterations += 1;
  progress_.consecutive_skips += 1;
  log_.warn(warning);
  write_event(RunEvent::Kind::Skip, warning);
  if (progress_.consecutive_skips > config_.training.max_consecutive_skips) {
    fail_training(
        str(progress_.consecutive_skips,
            " consecutive steps had a non-finite or outlying loss or gradient; training.max_consecutive_skips is ",
            config_.training.max_consecutive_skips));
  }
}

void Trainer::roll_back(const std::string& reason) {
  const i64 limit = config_.training.max_rollbacks;
  if (progress_.rollbacks >= limit) fail_training(str(reason, "; training.max_rollbacks is ", limit));
  session_.enter(Activity::SettingUp, progress_.iteration);
  log_.warn(
      str(reason, "; rolling back to the newest intact checkpoint (", progress_.rollbacks + 1, " of ", limit, ")"));
  saver_.finish();
  const TrainingProgress saved = reload_training(config_, sources_.datasets, state_, session_, log_);
  if (saved.iteration > progress_.iteration) {
    fail_training(str(config_.checkpoint.save, ": has a checkpoint of iteration ", saved.iteration,
                      ", which this run has not reached; move it to a different folder"));
  }
  progress_.roll_back_to(saved);
  const std::string outcome = str("the weights are those of iteration ", saved.iteration, "; continuing after sample ",
                                  progress_.consumed_samples - 1);
  log_.info(outcome);
  write_event(RunEvent::Kind::RollBack, str(reason, "; ", outcome));
}

void Trainer::fail_training(const std::string& reason) {
  if (!step_logger_.is_empty()) log_iteration();
  saver_.finish();
  write_event(RunEvent::Kind::Failure, reason);
  fail(ExitCode::TrainingFailed, reason,
       ". Lower optimizer.lr, lengthen the warm-up, or check the data of these samples");
}

void Trainer::log_iteration() {
  sync_gemm_algos(config_.device, *session_.device, session_.parallel.world);
  step_logger_.write_line(progress_.iteration, state_.offloaded_bytes(), metrics_, tensorboard_);
}

void Trainer::check_before_save() {
  // Replicas share the work of saving: a checkpoint of ranks that differ would be a mixture.
  if (config_.training.check_weight_hash_across_dp_replicas_interval > 0)
    check_weights_across_replicas(state_, session_.parallel);
  const std::string bad_weight = find_nonfinite_weight(state_, session_.parallel.world, *session_.device);
  if (bad_weight.empty()) return;
  const std::string what = str("iteration ", progress_.iteration, ": a weight is not finite (", bad_weight, ")");
  if (!config_.can_roll_back()) fail_training(what + "; no checkpoint is written");
  roll_back(what);
}

}  // namespace mcpp
