#include "megatron_cpp/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "megatron_cpp/bench.h"
#include "megatron_cpp/model_provider.h"
#include "model/flops.h"
#include "parallel/scalar.h"

namespace mcpp {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

TrainingLength training_length(const Config& config) {
  // A growing batch comes with train_samples, where no length is counted in iterations: then any of its sizes will do.
  return {.train_iters = config.training.train_iters,
          .train_samples = config.training.train_samples,
          .global_batch_size = config.batch_sizes().front().batch_size};
}

}  // namespace

Trainer::Trainer(const Config& config, Session& session, const SignalWatch& signals, const Log& log)
    : config_(config),
      session_(session),
      signals_(signals),
      log_(log),
      batch_sizes_(config.batch_sizes()),
      train_iters_(config.total_iterations()),
      lock_(lock_save_folder(config, session, log)),
      state_(model_provider(config, session), config.optimizer, layout_provider(config, session)),
      progress_(load_training(config, state_, session, log).value_or(TrainingProgress{})),
      saver_(config, state_, progress_, keep_tokenizer(config, session), session, log, files_),
      datasets_(dataset_provider(config, log)),
      schedule_(config.optimizer, training_length(config)),
      metrics_(is_first_rank() ? config.metrics_path() : Path(), progress_.iteration, log),
      peak_tflops_(config.logging.peak_tflops) {
  batches_ = std::make_unique<BatchStream>(*datasets_.train, config, batch_sizes_, progress_.consumed_samples, session);
  if (peak_tflops_ == 0) peak_tflops_ = peak_flops(dtype_of(config.training.precision), *session.device) / 1e12;
  session.device->trim();
}

ExitCode Trainer::train() {
  if (progress_.iteration >= train_iters_) {
    saver_.save_last(progress_);
    log_.info(str("all ", train_iters_, " iterations are done; set training.train_iters higher to train on"));
    return ExitCode::Done;
  }
  start_ = Clock::now();
  window_begin_ = spent();
  bool stopping = false;
  while (progress_.iteration < train_iters_ && !stopping) {
    train_step();
    const i64 iteration = progress_.iteration;
    const auto due = [&](i64 interval) { return interval > 0 && iteration % interval == 0; };
    if (due(config_.logging.log_interval) || iteration == 1 || iteration == train_iters_) log_iteration();
    save(/*is_last=*/false);
    if (due(config_.training.eval_interval) && iteration < train_iters_) evaluate("validation", datasets_.valid.get());
    stopping = should_exit();
  }
  save(/*is_last=*/true);
  if (signal_ != 0) return ExitCode::Preempted;
  if (progress_.iteration >= train_iters_) {
    evaluate("validation", datasets_.valid.get());
    evaluate("test", datasets_.test.get());
  }
  return ExitCode::Done;
}

void Trainer::train_step() {
  const std::vector<MicroBatch> batches = batches_->next();
  const double lr = schedule_.lr(progress_.trained_samples);
  const StepOutcome outcome = state_.train_step(batches, lr, schedule_.weight_decay(progress_.trained_samples));
  const i64 batch_size = batch_size_at(batch_sizes_, progress_.consumed_samples);
  progress_.iteration += 1;
  progress_.consumed_samples += batch_size;
  progress_.consumed_tokens += outcome.tokens;
  if (!outcome.skipped) progress_.trained_samples += batch_size;
  note(outcome, lr, batch_size);
}

void Trainer::note(const StepOutcome& outcome, double learning_rate, i64 batch_size) {
  window_.iteration = progress_.iteration;
  window_.train_iters = train_iters_;
  window_.consumed_samples = progress_.consumed_samples;
  window_.learning_rate = learning_rate;
  window_.global_batch_size = batch_size;
  window_.grad_norm = outcome.grad_norm;
  window_.lm_loss = outcome.loss;
  window_iterations_ += 1;
  window_samples_ += batch_size;
  if (!outcome.skipped) {
    window_losses_ += 1;
    window_loss_ += outcome.loss;
  }
  window_.elapsed_ms = 1000 * (spent() - window_begin_).clock / static_cast<double>(window_iterations_);
  const double samples = static_cast<double>(window_samples_) / static_cast<double>(window_iterations_);
  set_rates(window_, samples * static_cast<double>(config_.model.seq_length),
            samples * flops_per_batch(config_.model, 1), peak_tflops_, session_.parallel.world.size());
  if (config_.logging.log_progress) log_.progress(progress_line(window_));

  consecutive_skips_ = outcome.skipped ? consecutive_skips_ + 1 : 0;
  if (!outcome.skipped) return;
  progress_.skipped_iterations += 1;
  window_.skipped_iterations += 1;
  window_.nan_iterations += !std::isfinite(outcome.loss);
  log_.warn(str("iteration ", progress_.iteration, ": the ", std::isfinite(outcome.loss) ? "gradient" : "loss",
                " is not finite; the step is skipped, the weights stay as they were (samples ",
                progress_.consumed_samples - batch_size, " to ", progress_.consumed_samples - 1, ")"));
  if (consecutive_skips_ > config_.training.max_consecutive_skips) {
    log_iteration();
    fail(ExitCode::TrainingFailed, consecutive_skips_,
         " steps in a row had a non-finite loss or gradient; training.max_consecutive_skips is ",
         config_.training.max_consecutive_skips,
         ". Lower optimizer.lr, lengthen the warm-up, or look at the data of these samples");
  }
}

RankSeconds Trainer::spent() const {
  return {.clock = seconds_since(start_),
          .pipeline = state_.pipeline_waiting_seconds(),
          .communication = exposed_seconds(session_.parallel)};
}

RankStats Trainer::rank_stats() const {
  const RankSeconds window = spent() - window_begin_;
  return {.peak_memory_bytes = static_cast<double>(session_.device->memory().total.peak),
          .bubble = window.pipeline / window.clock,
          .exposed_communication = window.communication / window.clock};
}

/// What the ranks spend, as means in the line, and once, after the first line that is not of a cold start, by rank.
void Trainer::note_ranks() {
  if (session_.parallel.world.size() == 1) return;
  const std::vector<RankStats> ranks = gather_rank_stats(rank_stats(), session_.parallel.world, *session_.device);
  RankStats mean;
  for (const RankStats& rank : ranks) {
    mean.bubble += rank.bubble / static_cast<double>(ranks.size());
    mean.exposed_communication += rank.exposed_communication / static_cast<double>(ranks.size());
    mean.peak_memory_bytes = std::max(mean.peak_memory_bytes, rank.peak_memory_bytes);
  }
  window_.ranks = mean;
  if (progress_.iteration > 1 && !std::exchange(ranks_are_shown_, true))
    log_.info(rank_table(ranks, session_.parallel.topology));
}

void Trainer::log_iteration() {
  window_.lm_loss = window_loss_ / static_cast<double>(window_losses_);  // nan when all were skipped
  note_ranks();
  log_.info(iteration_line(window_, std::chrono::system_clock::now()));
  metrics_.write(window_);
  window_ = {};
  window_loss_ = 0;
  window_losses_ = window_samples_ = window_iterations_ = 0;
  window_begin_ = spent();
}

void Trainer::evaluate(const char* split, Dataset* dataset) {
  if (!dataset || config_.training.eval_iters == 0) return;
  const RankSeconds before = spent();
  // A fixed set of samples, so that evaluations can be compared with one another.
  const i64 batch_size = batch_sizes_.back().batch_size;
  BatchStream batches(*dataset, config_, {{0, batch_size}}, 0, session_);
  double loss_sum = 0;
  i64 tokens = 0;
  for (i64 i = 0; i < config_.training.eval_iters; ++i) {
    if (agree_on_signal() != 0) return;  // what matters then is to save in time
    const StepOutcome outcome = state_.evaluate(batches.next());
    loss_sum += outcome.loss * static_cast<double>(outcome.tokens);
    tokens += outcome.tokens;
  }
  const ValidationStats stats{.iteration = progress_.iteration,
                              .split = split,
                              .lm_loss = loss_sum / static_cast<double>(tokens),
                              .tokens = tokens};
  log_.info(validation_lines(stats));
  metrics_.write(stats);
  window_begin_ += spent() - before;  // it is not training
}

void Trainer::save(bool is_last) {
  const RankSeconds before = spent();
  is_last ? saver_.save_last(progress_) : saver_.after_step(progress_);
  window_begin_ += spent() - before;  // it is not training
}

int Trainer::agree_on_signal() {
  Communicator& world = session_.parallel.world;
  signal_ = static_cast<int>(reduce_scalar(signals_.received(), ReduceOp::Max, world, *session_.device));
  return signal_;
}

bool Trainer::is_time_over() {
  const double limit = config_.training.exit_duration_in_mins;
  if (limit <= 0) return false;
  const double minutes = seconds_since(start_) / 60;  // clocks differ, decisions must not
  return reduce_scalar(minutes, ReduceOp::Max, session_.parallel.world, *session_.device) >= limit;
}

bool Trainer::should_exit() {
  const TrainingConfig& training = config_.training;
  const char* then = config_.checkpoint.save.empty() ? "stopping; nothing is saved, because checkpoint.save is empty"
                                                     : "saving and stopping";
  if (agree_on_signal() != 0) {
    log_.info(str("signal ", signal_, " received: ", then));
    return true;
  }
  if (is_time_over()) {
    log_.info(str("training.exit_duration_in_mins is over: ", then));
    return true;
  }
  return training.exit_interval > 0 && progress_.iteration % training.exit_interval == 0;
}

}  // namespace mcpp
