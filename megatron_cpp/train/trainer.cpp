#include "megatron_cpp/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/machine.h"
#include "base/number_format.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/step/state_checks.h"
#include "megatron_cpp/step/step_policy.h"

namespace mcpp {
namespace {

/// End of the log line of a run that stops early.
constexpr const char* kContinueHint = "; start the same command again to continue";

}  // namespace

Trainer::Trainer(const RunContext& run, TrainerParts parts)
    : run_(run),
      parts_(std::move(parts)),
      state_(*parts_.state),
      saver_(*parts_.saver),
      trace_(*parts_.trace),
      progress_(parts_.progress),
      batch_sizes_(run_.config.batch_sizes()),
      faults_(std::cref(run_.config.fault_injection), run_.world().rank()),
      statistics_(std::cref(run_.config.logging), state_, run_.world(), [this](i64 i) { return should_log(i); }) {
  if (!run_.config.training.attribute_spikes) return;
  state_.record_layer_squares();
  layer_norms_.emplace(std::cref(state_), run_.world(), run_.config.training.spike_window);
  state_.record_sample_losses(true);
}

ExitCode Trainer::train() {
  run_.logger.begin_timing(timings());
  run_.session.profiler->enable_timers(static_cast<Detail>(run_.config.logging.timing_log_level));
  const i64 end = parts_.end.iterations;
  const bool is_done = progress_.iteration >= end;
  is_done ? log_nothing_left() : log_start();
  // A rollback needs a checkpoint.
  if (!is_done && run_.config.can_roll_back() && !progress_.is_saved) save(SaveReason::Start);
  if (!is_done) run_missed_evaluations();
  if (!is_done && signal() == 0) run_iterations();
  if (signal() != 0)  // SignalWatch has logged a signal of this rank
    log_stop(str("signal ", signal(), " received"),
             parts_.step_progress->signal() == 0 ? RunEvent::Console::Info : RunEvent::Console::None);
  run_.session.enter(Activity::Saving, progress_.iteration);
  saver_.finish();
  if (saver_.must_save(progress_))
    save(SaveReason::Stop);
  else if (signal() != 0 && !run_.config.checkpoint.save.empty())
    run_.log.info(str("iteration ", progress_.iteration, " is already saved", kContinueHint));
  if (!run_.config.checkpoint.save.empty()) saver_.remove_parts_in_memory();
  trace_.write();  // of a window that the end of the training truncated
  if (signal() == 0 && progress_.iteration >= end) {
    run_missed_evaluations();
    if (signal() != 0) run_.log.info("the evaluation is canceled; start the same command again to repeat it");
  }
  if (signal() != 0) return ExitCode::Preempted;
  if (stops_for_slow_rank_ && progress_.iteration < end) return ExitCode::PeerLost;
  log_end(is_done);
  return ExitCode::Done;
}

void Trainer::log_start() {
  run_.logger.log_start(total_iterations());
  if (!run_.config.stage) return;
  const Stage& stage = *run_.config.stage;
  const std::string text =
      str(stage.title(), ": iterations ", stage.first_iteration + 1, " to ", stage.last_iteration(), ", ",
          batch_sizes_.front().batch_size, " samples of ", run_.config.model.seq_length, " tokens each");
  if (progress_.iteration > stage.first_iteration) return run_.log.info(text);
  // The event belongs to the first iteration of the stage, so that a run that resumes before it logs the event once.
  run_.logger.log_event({.kind = RunEvent::Kind::Stage, .iteration = stage.first_iteration + 1, .text = text});
}

void Trainer::log_nothing_left() const {
  if (!is_last_stage()) return;
  const std::string key = run_.config.stage                      ? "the length of the last stage"
                          : run_.config.training.train_iters > 0 ? "training.train_iters"
                                                                 : "training.train_samples";
  run_.log.info(str("all ", total_iterations(), " iterations are done; set ", key, " higher to continue training"));
}

void Trainer::log_end(bool is_done) {
  if (!is_last_stage() && has_completed_stage()) return run_.log.info(run_.config.stage->title() + " has ended");
  const std::string text = str("ended at iteration ", progress_.iteration, " of ", total_iterations());
  run_.log.info(text);  // launch.sh searches for it
  if (!is_done) log_event(RunEvent::Kind::End, text, RunEvent::Console::None);
}

void Trainer::run_iterations() {
  while (iteration() < parts_.end.iterations && !should_stop_) {
    if (trace_.is_first_iteration(iteration() + 1)) begin_trace();
    train_step();
    if (must_finish_step()) finish_step();
    if (signal() != 0) break;
    if (trace_.ends_with(iteration())) end_trace();
    if (is_due(run_.config.training.check_weight_hash_across_dp_replicas_interval))
      check_weights_across_replicas(state_, run_.session.parallel);
    saver_.poll();
    if (saver_.is_due(iteration())) save(SaveReason::Interval);
    if (is_due(run_.config.training.eval_interval) && iteration() < parts_.end.iterations) evaluate();
    should_stop_ = should_exit();
  }
  finish_step();
  if (trace_.is_open()) close_trace();
}

void Trainer::begin_trace() {
  finish_step();
  const RankTimings before = timings();
  trace_.begin(progress_.iteration + 1, state_);
  exclude_from_timing(before);
}

void Trainer::end_trace() {
  const RankTimings before = timings();
  close_trace();
  trace_.write();
  exclude_from_timing(before);
}

void Trainer::close_trace() {
  trace_.end(progress_.iteration, state_, run_.config.parallel.zero_stage);
}

/// Saving, evaluating and ending the run require the outcome of all steps.
bool Trainer::must_finish_step() const {
  return step_minutes_ >= kLongStep || iteration() == parts_.end.iterations || saver_.is_due(iteration()) ||
         is_due(run_.config.training.eval_interval) || is_due(run_.config.training.exit_interval) ||
         is_due(run_.config.training.check_weight_hash_across_dp_replicas_interval) || trace_.ends_with(iteration());
}

void Trainer::train_step() {
  const i64 iteration = this->iteration() + 1;
  if (std::ranges::count(run_.config.training.iterations_to_skip, iteration) > 0) return skip_iteration();
  run_.session.enter(Activity::Training, iteration);
  parts_.step_progress->begin(str("iteration ", iteration, "/", total_iterations()));
  // For traces only; the log measures steps itself.
  const TimedRange range(run_.session.profiler.get(), "train-step", Detail::Layer, {.iteration = iteration});
  faults_.before_step(iteration);
  if (should_compare_executions(iteration)) finish_step();
  if (is_aborted_) return;
  std::vector<MicroBatch> batches = next_batches();
  should_compare_executions(iteration) ? compare_executions(iteration, batches) : backward(iteration, batches);
  // The outcome of the previous step determines the learning rate, the optimizer's step count and the spike limits. It
  // is awaited here, while the device executes the next forward and backward passes. If it replaced weights or
  // gradients, or its overflow changed the loss scale, these passes are repeated.
  const bool is_replaced = finish_step();
  if (is_aborted_) return;
  if (is_replaced || state_.needs_backward_rerun()) backward(iteration, batches);
  saver_.wait_for_copy();
  faults_.corrupt(iteration, state_);
  const StepOptions options{.lr = parts_.schedule->lr(progress_),
                            .weight_decay = parts_.schedule->weight_decay(progress_),
                            .rule = make_step_rule(run_.config.training, progress_.spikes)};
  StepStatistics statistics = statistics_.gradient_statistics(iteration);
  state_.update(options);
  pending_ = {.learning_rate = options.lr,
              .weight_decay = options.weight_decay,
              .batch_size = batch_size_at(batch_sizes_, progress_.consumed_samples),
              .timings = timings(),
              .timers = run_.session.profiler->take_seconds(),
              .statistics = std::move(statistics)};
  if (run_.config.training.rerun_spikes) pending_->batches = std::move(batches);
}

void Trainer::skip_iteration() {
  finish_step();
  if (is_aborted_) return;
  const i64 iteration = progress_.iteration + 1;
  run_.session.enter(Activity::Training, iteration);
  faults_.before_step(iteration);
  const std::vector<MicroBatch> batches = next_batches();
  const i64 batch_size = batch_size_at(batch_sizes_, progress_.consumed_samples);
  progress_.iteration = iteration;
  progress_.skipped_iterations += 1;
  progress_.consumed_samples += batch_size;
  progress_.consumed_tokens += state_.count_targets(batches);
  log_event(RunEvent::Kind::Skip,
            str("iteration ", progress_.iteration, ": skipped (training.iterations_to_skip), with samples ",
                progress_.consumed_samples - batch_size, " to ", progress_.consumed_samples - 1));
  if (is_log_iteration(progress_.iteration) && run_.logger.has_unlogged_steps()) log_line();
}

std::vector<MicroBatch> Trainer::next_batches() {
  const TimedRange range(run_.session.profiler.get(), "batch-generator", Detail::Phase);
  return parts_.batches->next();
}

void Trainer::backward(i64 iteration, const std::vector<MicroBatch>& batches) {
  statistics_.before_backward(iteration);
  state_.record_attention_logits(run_.config.logging.log_max_attention_logit && should_log(iteration));
  state_.set_exact_reduction(iteration <= run_.config.parallel.power_sgd_start_iter);
  faults_.run_passes(iteration, state_, [&] { state_.backward(batches, faults_.loss_grad_factor(iteration)); });
  statistics_.after_backward();
}

bool Trainer::should_log(i64 iteration) const {
  const LoggingConfig& logging = run_.config.logging;
  return is_log_iteration(iteration) || logging.metrics_every_iteration ||
         (!logging.tensorboard_dir.empty() && iteration % logging.tensorboard_log_interval == 0);
}

void Trainer::evaluate() {
  const RankTimings before = timings();
  if (run_.config.training.eval_ema) saver_.wait_for_copy();
  parts_.evaluator->evaluate_validation_sets(progress_, /*only_missing=*/false);
  exclude_from_timing(before);
}

void Trainer::run_missed_evaluations() {
  const RankTimings before = timings();
  const bool is_end = progress_.iteration >= parts_.end.iterations;
  const bool is_due_now =
      progress_.iteration > 0 ? is_due(run_.config.training.eval_interval) : run_.config.training.eval_on_start;
  if (is_end || is_due_now) parts_.evaluator->evaluate_validation_sets(progress_, /*only_missing=*/true);
  if (is_end && is_last_stage()) parts_.evaluator->evaluate_test_set(progress_);
  log_device_warnings(*run_.session.device, run_.log);  // that no later step reports
  exclude_from_timing(before);
}

void Trainer::save(SaveReason reason) {
  run_.session.enter(Activity::Saving, progress_.iteration);
  const RankTimings before = timings();
  const TimedRange range(run_.session.profiler.get(), "save-checkpoint", Detail::Phase);
  sync_gemm_algos(run_.config.device, *run_.session.device, run_.world());
  check_before_save();
  const SaveObserver observer = faults_.observer(progress_.iteration);
  const bool is_unfinished = reason == SaveReason::Stop && progress_.iteration < parts_.end.iterations;
  const bool is_end_of_stage = !is_unfinished && !is_last_stage();  // every run with these stages saves there
  const bool is_interim = reason == SaveReason::Stop && run_.config.can_roll_back() &&
                          !saver_.is_due(progress_.iteration) && !is_end_of_stage;
  if (reason == SaveReason::Interval)
    saver_.save(progress_, observer);
  else
    saver_.save_and_wait(progress_, observer, is_interim, is_unfinished ? kContinueHint : "");
  exclude_from_timing(before);
}

/// Decides by values that all ranks agreed on in finished steps, so that no communication is needed. train() reports
/// signals.
bool Trainer::should_exit() {
  const TrainingConfig& training = run_.config.training;
  if (signal() != 0) return true;
  if (training.exit_duration_in_mins > 0 && state_.stop_request().minutes >= training.exit_duration_in_mins) {
    log_stop("training.exit_duration_in_mins has elapsed", RunEvent::Console::Info);
    return true;
  }
  if (training.straggler_policy == StragglerPolicy::Stop && run_.logger.slow_rank() >= 0) {
    stop_for_slow_rank(run_.logger.slow_rank());
    return true;
  }
  return is_due(training.exit_interval);
}

void Trainer::stop_for_slow_rank(int rank) {
  stops_for_slow_rank_ = true;
  const std::vector<std::string> hosts = all_gather_strings(host_name(), run_.world());
  // launch.sh searches for the host.
  log_stop(
      str("rank ", rank, " on host ", hosts[static_cast<std::size_t>(rank)], " is slow (training.straggler_policy)"),
      RunEvent::Console::Warning);
}

void Trainer::log_stop(const std::string& reason, RunEvent::Console console) {
  log_event(
      RunEvent::Kind::Stop,
      reason + (run_.config.checkpoint.save.empty() ? ": stopping; nothing is saved, because checkpoint.save is empty"
                                                    : ": saving and stopping"),
      console);
}

void Trainer::log_event(RunEvent::Kind kind, const std::string& text, RunEvent::Console console) {
  run_.logger.log_event({.kind = kind, .iteration = progress_.iteration, .text = text, .console = console});
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
    run_.log.info(str("iteration ", progress_.iteration + 1, " is canceled and has no effect"));
    return false;
  }
  progress_.iteration += 1;
  progress_.consumed_samples += step.batch_size;
  progress_.consumed_tokens += outcome.tokens;
  if (!outcome.is_skipped) progress_.trained_samples += step.batch_size;
  // A batch without targets, in which a loss mask excludes all tokens, has the loss 0, which would distort the spike
  // limits.
  const bool is_measured = outcome.status != StepStatus::NotFinite && outcome.tokens > 0;
  if (is_measured && run_.config.training.spike_policy != SpikePolicy::Off)
    progress_.spikes.add(outcome.loss, outcome.grad_norm, run_.config.training.spike_window);
  log_step(outcome, step);
  log_device_warnings(*run_.session.device, run_.log);
  const bool is_bad = outcome.status != StepStatus::Fine && outcome.overflow != Overflow::Handled;
  if (layer_norms_ && outcome.overflow != Overflow::Handled) attribute_step(outcome);
  const bool is_rerun = is_bad && outcome.is_skipped && run_.config.training.rerun_spikes;
  if (is_rerun) rerun_step(outcome, step);
  const bool rolled_back = apply_step_policy(outcome, step.batch_size);
  if (is_log_iteration(iteration())) log_line();
  return rolled_back || is_rerun;
}

void Trainer::attribute_step(const StepOutcome& outcome) {
  if (outcome.status == StepStatus::Fine) return layer_norms_->add_step(outcome.tokens);
  std::string text =
      str("iteration ", progress_.iteration, ": ", describe_layer_norms(layer_norms_->last_step(outcome.tokens)));
  const std::map<i64, double> losses = mean_sample_losses(state_, run_.world());
  if (run_.world().rank() == 0) {
    try {
      const i64 first_sample = run_.config.stage ? run_.config.stage->first_sample : 0;
      text += SampleDescriber(run_.config, *parts_.datasets->train, first_sample).describe(losses);
    } catch (const Error& error) {
      text += str("; its samples cannot be shown: ", error.what());
    }
  }
  log_event(RunEvent::Kind::Cause, text, RunEvent::Console::Warning);
}

bool Trainer::should_compare_executions(i64 iteration) const {
  const i64 interval = run_.config.training.rerun_interval;
  return interval > 0 && iteration % interval == 0;
}

void Trainer::compare_executions(i64 iteration, const std::vector<MicroBatch>& batches) {
  saver_.wait_for_copy();
  StepReplay replay(state_, run_.session.parallel);
  const ReplayVerdict verdict = replay.compare([&] { backward(iteration, batches); });
  if (verdict.kind == ReplayVerdict::Kind::Persistent) fail_on_faulty_ranks(iteration, verdict.ranks);
  if (verdict.kind != ReplayVerdict::Kind::Transient) return;
  run_.logger.log_event(
      {.kind = RunEvent::Kind::Rerun,
       .iteration = iteration,
       .text = str("iteration ", iteration, ": two executions of the step differ on ", describe(verdict.ranks),
                   "; a third agrees with one of them and is used: a transient fault"),
       .console = RunEvent::Console::Warning});
}

void Trainer::rerun_step(const StepOutcome& outcome, const PendingStep& step) {
  saver_.wait_for_copy();
  StepReplay replay(state_, run_.session.parallel);
  const ReplayVerdict verdict = replay.compare([&] { backward(progress_.iteration, step.batches); });
  if (verdict.kind == ReplayVerdict::Kind::Aborted) return;
  if (verdict.kind == ReplayVerdict::Kind::Persistent) fail_on_faulty_ranks(progress_.iteration, verdict.ranks);
  const auto [loss, grad_norm, is_aborted] = replay.measurement();
  const bool is_same = loss == outcome.loss && grad_norm == outcome.grad_norm;
  std::string text = str("iteration ", progress_.iteration, ": ");
  if (verdict.kind == ReplayVerdict::Kind::Transient) {
    text += str("two executions of the step differ on ", describe(verdict.ranks), ": a transient fault");
  } else if (is_same) {
    text += "repeated executions have the same loss and gradient norm: the data or the settings caused them, no fault";
  } else {
    text += str("repeated executions agree on loss ", shortest(loss), " and gradient norm ", shortest(grad_norm),
                ": a transient fault of an unknown rank; training.rerun_interval = 1 names it");
  }
  log_event(RunEvent::Kind::Rerun, text, is_same ? RunEvent::Console::Info : RunEvent::Console::Warning);
}

void Trainer::fail_on_faulty_ranks(i64 iteration, const std::vector<FaultyRank>& ranks) {
  const std::string reason = str("iteration ", iteration, ": every execution of the step has a different result on ",
                                 describe(ranks), ": its memory or arithmetic cannot be trusted");
  run_.logger.log_event(
      {.kind = RunEvent::Kind::Failure, .iteration = iteration, .text = reason, .console = RunEvent::Console::None});
  fail(ExitCode::PeerLost, reason, ". Exclude that host and restart; the run resumes from its last checkpoint");
}

void Trainer::log_step(const StepOutcome& outcome, PendingStep& step) {
  statistics_.add_weights(progress_.iteration, outcome.grad_norm, step.statistics);
  run_.logger.log_step(
      {.stats = {.iteration = progress_.iteration,
                 .train_iters = total_iterations(),
                 .consumed_samples = progress_.consumed_samples,
                 .learning_rate = step.learning_rate,
                 .weight_decay = step.weight_decay,
                 .global_batch_size = step.batch_size,
                 .lm_loss = outcome.loss,
                 .mtp_losses = outcome.mtp_losses,
                 .output_z_loss = outcome.output_z_loss,
                 .loss_scale = state_.loss_scale().value(),
                 .grad_norm = outcome.grad_norm,
                 .skipped_iterations = outcome.is_skipped,
                 .nan_iterations = !std::isfinite(outcome.loss),
                 .mfu = {},
                 .experts =
                     expert_stats(outcome.experts, static_cast<double>(step.batch_size * run_.config.model.seq_length)),
                 .params_norm = step.statistics.params_norm,
                 .num_zeros = step.statistics.num_zeros,
                 .logits = outcome.logits},
       .end = step.timings,
       .timers = std::move(step.timers),
       .statistics = std::move(step.statistics),
       .experts = outcome.experts});
}

bool Trainer::apply_step_policy(const StepOutcome& outcome, i64 batch_size) {
  if (outcome.overflow == Overflow::Handled) {
    progress_.skipped_iterations += 1;
    const std::string what =
        str("iteration ", progress_.iteration, ": the gradient overflows; the step is skipped, the loss scale is now ",
            fixed(state_.loss_scale().value(), 1));
    log_event(RunEvent::Kind::Skip, what);
    return false;
  }
  const StepAction action = choose_action(run_.config.training, outcome.status);
  if (action != StepAction::Skip) progress_.consecutive_skips = 0;
  if (action == StepAction::Continue) return false;
  const std::string what = str("iteration ", progress_.iteration, ": ", describe(outcome)),
                    samples = str(" (samples ", progress_.consumed_samples - batch_size, " to ",
                                  progress_.consumed_samples - 1, ")");
  if (action == StepAction::Warn) log_event(RunEvent::Kind::Spike, what + samples, RunEvent::Console::Warning);
  if (action == StepAction::Skip) count_skip(what + "; the step is skipped, the weights are unchanged" + samples);
  if (action == StepAction::RollBack) roll_back(what + samples);
  if (action == StepAction::Stop) fail_training(what + samples + "; training.nan_policy is \"stop\"");
  return action == StepAction::RollBack;
}

void Trainer::count_skip(const std::string& warning) {
  progress_.skipped_iterations += 1;
  progress_.consecutive_skips += 1;
  log_event(RunEvent::Kind::Skip, warning, RunEvent::Console::Warning);
  if (progress_.consecutive_skips > run_.config.training.max_consecutive_skips) {
    fail_training(
        str(progress_.consecutive_skips,
            " consecutive steps had a non-finite or outlying loss or gradient; training.max_consecutive_skips is ",
            run_.config.training.max_consecutive_skips));
  }
}

void Trainer::roll_back(const std::string& reason) {
  const i64 limit = run_.config.training.max_rollbacks;
  if (progress_.rollbacks >= limit) fail_training(str(reason, "; training.max_rollbacks is ", limit));
  run_.session.enter(Activity::SettingUp, progress_.iteration);
  run_.log.warn(
      str(reason, "; rolling back to the newest intact checkpoint (", progress_.rollbacks + 1, " of ", limit, ")"));
  saver_.finish();
  const TrainingProgress saved = reload_training(run_, parts_.sources.datasets, state_);
  if (saved.iteration > progress_.iteration) {
    fail_training(str(run_.config.checkpoint.save, ": has a checkpoint of iteration ", saved.iteration,
                      ", which this run has not reached; move it to a different folder"));
  }
  progress_.roll_back_to(saved);
  const std::string outcome = str("the weights are those of iteration ", saved.iteration, "; continuing after sample ",
                                  progress_.consumed_samples - 1);
  run_.log.info(outcome);
  log_event(RunEvent::Kind::RollBack, str(reason, "; ", outcome), RunEvent::Console::None);
}

void Trainer::fail_training(const std::string& reason) {
  if (run_.logger.has_unlogged_steps()) log_line();
  saver_.finish();
  log_event(RunEvent::Kind::Failure, reason, RunEvent::Console::None);
  fail(ExitCode::TrainingFailed, reason,
       ". Lower optimizer.lr, lengthen the warm-up, or check the data of these samples");
}

void Trainer::log_line() {
  sync_gemm_algos(run_.config.device, *run_.session.device, run_.world());
  run_.logger.log_line(state_.offloaded_bytes());
}

void Trainer::check_before_save() {
  // Replicas share the work of saving: a checkpoint of ranks that differ would be a mixture.
  if (run_.config.training.check_weight_hash_across_dp_replicas_interval > 0)
    check_weights_across_replicas(state_, run_.session.parallel);
  const std::string bad_weight = find_nonfinite_weight(state_, run_.world(), *run_.session.device);
  if (bad_weight.empty()) return;
  const std::string what = str("iteration ", progress_.iteration, ": a weight is not finite (", bad_weight, ")");
  if (!run_.config.can_roll_back()) fail_training(what + "; no checkpoint is written");
  roll_back(what);
}

}  // namespace mcpp
