// Handling of step outcomes: statistics, and reactions to steps that went wrong.
#include <cmath>
#include <utility>

#include "base/number_format.h"
#include "megatron_cpp/monitor/device_warnings.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/gemm_tuning.h"
#include "megatron_cpp/step/finite_check.h"
#include "megatron_cpp/step/replica_check.h"
#include "megatron_cpp/step/step_policy.h"
#include "megatron_cpp/train/trainer.h"

namespace mcpp {
namespace {

std::string describe(const StepOutcome& outcome) {
  if (outcome.verdict == StepStatus::Spike) {
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
    log_.info(str("iteration ", progress_.iteration + 1, " is cancelled and has no effect"));
    return false;
  }
  progress_.iteration += 1;
  progress_.consumed_samples += step.batch_size;
  progress_.consumed_tokens += outcome.tokens;
  if (!outcome.skipped) progress_.trained_samples += step.batch_size;
  if (outcome.verdict != StepStatus::NotFinite && config_.training.spike_policy != SpikePolicy::Off)
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
                              .skipped_iterations = outcome.skipped,
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
  const StepAction action = choose_action(config_.training, outcome.verdict);
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
  log_.warn(str(reason, "; rolling back to the newest good checkpoint (", progress_.rollbacks + 1, " of ", limit, ")"));
  saver_.finish();
  const TrainingProgress saved = reload_training(config_, sources_.datasets, state_, session_, log_);
  if (saved.iteration > progress_.iteration) {
    fail_training(str(config_.checkpoint.save, ": has a checkpoint of iteration ", saved.iteration,
                      ", which this run has not reached; move it away"));
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
