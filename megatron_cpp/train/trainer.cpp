#include "megatron_cpp/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/machine.h"
#include "base/number_text.h"
#include "checkpoint/folder/exchange.h"
#include "megatron_cpp/bench/bench.h"
#include "megatron_cpp/monitor/device_notices.h"
#include "megatron_cpp/resume/loading.h"
#include "megatron_cpp/setup/gemm_tuning.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/shared_index.h"
#include "megatron_cpp/setup/version.h"
#include "megatron_cpp/step/finite_check.h"
#include "megatron_cpp/step/replica_check.h"
#include "megatron_cpp/step/step_policy.h"
#include "megatron_cpp/train/evaluation.h"
#include "model/flops.h"

namespace mcpp {
namespace {

std::string describe(const StepOutcome& outcome) {
  if (outcome.verdict == StepVerdict::Spike) {
    return str("loss or gradient stands out from those before: loss ", shortest(outcome.loss), ", gradient norm ",
               shortest(outcome.grad_norm));
  }
  return std::isfinite(outcome.loss) ? "the gradient is not finite" : "the loss is not finite";
}

TrainingLength training_length(const Config& config) {
  // A growing batch comes with train_samples, where no length is counted in iterations: then any of its sizes will do.
  return {.train_iters = config.training.train_iters,
          .train_samples = config.training.train_samples,
          .global_batch_size = config.batch_sizes().front().batch_size};
}

/// What MFU is a share of, in TFLOP/s: as configured, or measured.
double peak_tflops(const Config& config, Device& device) {
  if (config.logging.peak_tflops > 0) return config.logging.peak_tflops;
  const double peak = mfu_peak_flops(dtype_of(config.training.precision), config.device.allow_tf32, device) / 1e12;
  device.trim();
  device.reset_peak();
  return peak;
}

}  // namespace

Trainer::Trainer(KeptRef<Config> config, Session& session, const SignalWatch& signals, KeptRef<Log> log)
    : config_(config),
      session_(session),
      log_(log),
      watch_(signals, log, config_.logging.log_progress),
      batch_sizes_(config_.batch_sizes()),
      train_iters_(config_.total_iterations()),
      lock_(lock_save_folder(config, session, log)),
      tensorboard_(config, is_first_rank(), log),
      trace_(std::cref(config_.logging), config_.profile_path(), session, log),
      window_({.tokens = static_cast<double>(config_.model.seq_length),
               .flops = flops_per_batch(config_.model, 1),
               .peak_tflops = peak_tflops(config, *session.device),
               .devices = session.parallel.world.size()}),
      sources_{.tokenizer_checksum = keep_tokenizer(config, session),
               .datasets = identify_datasets(config, session.parallel.world)},
      state_(model_provider(config, session), config_.optimizer, layout_provider(config, session)),
      statistics_(std::cref(config_.logging), state_, session.parallel.world, [this](i64 i) { return is_told(i); }),
      progress_(load_training(config, sources_.datasets, state_, session, log).value_or(TrainingProgress{})),
      faults_(config_.fault_injection, session.parallel.world.rank()),
      saver_(config, state_, progress_, sources_, session, log, files_, lock_.get()),
      datasets_(dataset_provider(
          config, SharedIndexRanks(session.parallel.world, *session.node, [&] { return signals.received(); }), log)),
      schedule_(config_.optimizer, training_length(config)),
      sampler_(config, session),
      metrics_(is_first_rank() ? config_.metrics_path() : Path(), progress_.iteration, log) {
  tensorboard_.begin({.iteration = progress_.iteration, .consumed_samples = progress_.consumed_samples}, metrics_);
  state_.set_watch(&watch_);
  saver_.set_listener([this](i64 iteration, const std::string& text) {
    metrics_.write(RunEvent{.kind = RunEvent::Kind::Save, .iteration = iteration, .text = text});
  });
  if (const std::string states = state_.optimizer().describe_states(); !states.empty())
    log_.info("optimizer state: " + states);
  if (const ActivationStore* activations = state_.activations()) log_.info("activations: " + activations->describe());
  batches_ = std::make_unique<BatchStream>(*datasets_.train, config, batch_sizes_, progress_.consumed_samples, session);
  session.device->trim();
}

ExitCode Trainer::train() {
  window_.begin(spent());
  session_.profiler->time(static_cast<Detail>(config_.logging.timing_log_level));
  const bool is_done = progress_.iteration >= train_iters_;
  if (is_done)
    log_.info(str("all ", train_iters_, " iterations are done; set training.train_iters higher to train on"));
  else
    write_start();
  // There must be something to go back to.
  if (!is_done && config_.may_roll_back() && !progress_.is_saved) save(/*waits=*/true);
  if (!is_done) evaluate_what_is_owed();
  if (!is_done && signal() == 0) run_iterations();
  if (signal() != 0) say_that_it_stops(str("signal ", signal(), " received"));
  session_.enter(Activity::Saving, progress_.iteration);
  saver_.finish();
  if (saver_.must_save(progress_)) save(/*waits=*/true);
  trace_.write();  // of a window that the end cut short
  if (signal() == 0 && progress_.iteration >= train_iters_) {
    evaluate_what_is_owed();
    if (signal() != 0)
      log_.info(str("signal ", signal(), " received: stopping; the next start makes up for the evaluation"));
  }
  if (signal() != 0) return ExitCode::Preempted;
  const std::string end = str("ended at iteration ", progress_.iteration, " of ", train_iters_);
  log_.info(end);  // launch.sh looks for it
  if (!is_done) note(RunEvent::Kind::End, end);
  return ExitCode::Done;
}

void Trainer::run_iterations() {
  bool stopping = false;
  while (iteration() < train_iters_ && !stopping) {
    if (trace_.begins_with(iteration() + 1)) begin_trace();
    train_step();
    if (must_finish_step()) finish_step();
    if (signal() != 0) break;
    if (trace_.ends_with(iteration())) end_trace();
    if (is_due(config_.training.check_weight_hash_across_dp_replicas_interval))
      check_weights_across_replicas(state_, session_.parallel);
    saver_.poll();
    if (saver_.is_due(iteration())) save(/*waits=*/false);
    if (is_due(config_.training.eval_interval) && iteration() < train_iters_)
      evaluate_validation_sets(/*only_owed=*/false);
    stopping = should_exit();
  }
  finish_step();
  if (trace_.is_open()) trace_.end(progress_.iteration, [this] { return spent(); });
}

void Trainer::begin_trace() {
  finish_step();
  const RankSeconds before = spent();
  trace_.begin(progress_.iteration + 1, [this] { return spent(); });
  leave_out(before);
}

void Trainer::end_trace() {
  const RankSeconds before = spent();
  trace_.end(progress_.iteration, [this] { return spent(); });
  trace_.write();
  leave_out(before);
}

/// What saves, evaluates or ends the run must know all that happened.
bool Trainer::must_finish_step() const {
  return step_minutes_ >= kLongStep || iteration() == train_iters_ || saver_.is_due(iteration()) ||
         is_due(config_.training.eval_interval) || is_due(config_.training.exit_interval) ||
         is_due(config_.training.check_weight_hash_across_dp_replicas_interval) || trace_.ends_with(iteration());
}

void Trainer::train_step() {
  const i64 iteration = this->iteration() + 1;
  session_.enter(Activity::Training, iteration);
  watch_.begin(str("iteration ", iteration, "/", train_iters_));
  // For traces alone: the log has its time.
  const TimedRange range(session_.profiler.get(), "train-step", Detail::Layer, {.iteration = iteration});
  faults_.before_step(iteration);
  const std::vector<MicroBatch> batches = next_batches();
  if (state_.loss_scale().adapts()) finish_step();  // the step before decides about the scale
  backward(iteration, batches);
  // It decides about the learning rate, the optimizer's step count and what counts as a spike, too: otherwise it is
  // waited for here, when the device has the next forward and backward to do.
  if (finish_step()) backward(iteration, batches);
  if (is_given_up_) return;
  saver_.wait_for_copy();
  faults_.corrupt(iteration, state_);
  const StepOptions options{.lr = schedule_.lr(progress_.trained_samples),
                            .weight_decay = schedule_.weight_decay(progress_.trained_samples),
                            .rule = step_rule(config_.training, progress_.spikes)};
  StepStatistics statistics = statistics_.of_gradients(iteration);
  state_.update(options);
  pending_ = {.learning_rate = options.lr,
              .batch_size = batch_size_at(batch_sizes_, progress_.consumed_samples),
              .spent = spent(),
              .timers = session_.profiler->take_seconds(),
              .statistics = std::move(statistics)};
}

std::vector<MicroBatch> Trainer::next_batches() {
  const TimedRange range(session_.profiler.get(), "batch-generator", Detail::Phase);
  return batches_->next();
}

bool Trainer::finish_step() {
  if (!pending_) return false;
  PendingStep step = *std::exchange(pending_, std::nullopt);
  const double minutes_before = state_.notices().minutes;
  const StepOutcome outcome = state_.outcome();
  step_minutes_ = state_.notices().minutes - minutes_before;
  is_given_up_ = outcome.is_given_up;
  if (is_given_up_) {
    log_.info(str("iteration ", progress_.iteration + 1, " is given up: nothing of it counts"));
    return false;
  }
  progress_.iteration += 1;
  progress_.consumed_samples += step.batch_size;
  progress_.consumed_tokens += outcome.tokens;
  if (!outcome.skipped) progress_.trained_samples += step.batch_size;
  if (outcome.verdict != StepVerdict::NotFinite && config_.training.spike_policy != SpikePolicy::Off)
    progress_.spikes.add(outcome.loss, outcome.grad_norm, config_.training.spike_window);
  record(outcome, step);
  tell_notices(*session_.device, log_);
  const bool rolled_back = follow_policy(outcome, step.batch_size);
  if (ends_line(iteration())) log_iteration();
  return rolled_back;
}

void Trainer::backward(i64 iteration, const std::vector<MicroBatch>& batches) {
  statistics_.before_backward(iteration);
  state_.backward(batches);
  statistics_.after_backward();
}

bool Trainer::is_told(i64 iteration) const {
  const LoggingConfig& logging = config_.logging;
  return ends_line(iteration) || logging.metrics_every_iteration ||
         (!logging.tensorboard_dir.empty() && iteration % logging.tensorboard_log_interval == 0);
}

void Trainer::record(const StepOutcome& outcome, PendingStep& step) {
  statistics_.add_weights(progress_.iteration, outcome.grad_norm, step.statistics);
  for (const auto& [name, seconds] : step.timers) timers_[name] += seconds;
  window_.add(
      {.iteration = progress_.iteration,
       .train_iters = train_iters_,
       .consumed_samples = progress_.consumed_samples,
       .learning_rate = step.learning_rate,
       .global_batch_size = step.batch_size,
       .lm_loss = outcome.loss,
       .loss_scale = state_.loss_scale().value(),
       .grad_norm = outcome.grad_norm,
       .skipped_iterations = outcome.skipped,
       .nan_iterations = !std::isfinite(outcome.loss),
       .mfu = {},
       .experts = expert_stats(outcome.experts, static_cast<double>(step.batch_size * config_.model.seq_length)),
       .params_norm = step.statistics.params_norm,
       .num_zeros = step.statistics.num_zeros},
      step.spent);
  for (const std::string& warning : idle_experts_.add(outcome.experts)) log_.warn(warning);
  if (config_.logging.log_progress) log_.progress(progress_line(window_.means()));
  tensorboard_.write(window_.last(), session_.device->memory().total);
  if (config_.logging.metrics_every_iteration) metrics_.write(window_.last());
  tensorboard_.write(step.statistics, progress_.iteration);
  if (step.statistics.layers.empty()) return;
  log_.info(layer_table(step.statistics));
  metrics_.write_layers(progress_.iteration, step.statistics);
}

bool Trainer::follow_policy(const StepOutcome& outcome, i64 batch_size) {
  if (outcome.overflow == Overflow::Handled) {
    progress_.skipped_iterations += 1;
    const std::string what =
        str("iteration ", progress_.iteration, ": the gradient overflows; the step is skipped, the loss scale is ",
            fixed(state_.loss_scale().value(), 1));
    log_.info(what);
    note(RunEvent::Kind::Skip, what);
    return false;
  }
  const StepAction action = action_for(config_.training, outcome.verdict);
  if (action != StepAction::Skip) progress_.consecutive_skips = 0;
  if (action == StepAction::GoOn) return false;
  const std::string what = str("iteration ", progress_.iteration, ": ", describe(outcome)),
                    samples = str(" (samples ", progress_.consumed_samples - batch_size, " to ",
                                  progress_.consumed_samples - 1, ")");
  if (action == StepAction::Warn) {
    log_.warn(what + samples);
    note(RunEvent::Kind::Spike, what + samples);
  }
  if (action == StepAction::Skip) count_skip(what + "; the step is skipped, the weights stay as they were" + samples);
  if (action == StepAction::RollBack) roll_back(what + samples);
  if (action == StepAction::Stop) give_up(what + samples + "; training.nan_policy is \"stop\"");
  return action == StepAction::RollBack;
}

void Trainer::count_skip(const std::string& warning) {
  progress_.skipped_iterations += 1;
  progress_.consecutive_skips += 1;
  log_.warn(warning);
  note(RunEvent::Kind::Skip, warning);
  if (progress_.consecutive_skips > config_.training.max_consecutive_skips) {
    give_up(str(progress_.consecutive_skips,
                " steps in a row had a non-finite loss or gradient, or one that stands out; "
                "training.max_consecutive_skips is ",
                config_.training.max_consecutive_skips));
  }
}

void Trainer::roll_back(const std::string& reason) {
  const i64 limit = config_.training.max_rollbacks;
  if (progress_.rollbacks >= limit) give_up(str(reason, "; training.max_rollbacks is ", limit));
  session_.enter(Activity::SettingUp, progress_.iteration);
  log_.warn(str(reason, "; going back to the newest good checkpoint (", progress_.rollbacks + 1, " of ", limit, ")"));
  saver_.finish();
  const TrainingProgress saved = reload_training(config_, sources_.datasets, state_, session_, log_);
  if (saved.iteration > progress_.iteration) {
    give_up(str(config_.checkpoint.save, ": has a checkpoint of iteration ", saved.iteration,
                ", which this run has not reached; move it away"));
  }
  progress_.roll_back_to(saved);
  const std::string outcome = str("the weights are those of iteration ", saved.iteration, "; going on after sample ",
                                  progress_.consumed_samples - 1);
  log_.info(outcome);
  note(RunEvent::Kind::RollBack, str(reason, "; ", outcome));
}

void Trainer::give_up(const std::string& reason) {
  if (!window_.is_empty()) log_iteration();
  saver_.finish();
  note(RunEvent::Kind::Failure, reason);
  fail(ExitCode::TrainingFailed, reason,
       ". Lower optimizer.lr, lengthen the warm-up, or look at the data of these samples");
}

RankSeconds Trainer::spent() const {
  return spent_by_rank(state_, session_.parallel);
}

void Trainer::leave_out(const RankSeconds& since) {
  window_.leave_out(spent() - since);
}

RankStats Trainer::rank_stats() const {
  const RankSeconds window = window_.seconds();
  const MemoryTable& memory = session_.device->memory();
  const BytesAway away = state_.bytes_away();
  RankStats stats{.peak_memory_bytes = static_cast<double>(memory.total.peak),
                  .bubble = window.pipeline / window.clock,
                  .exposed_communication = window.communication / window.clock,
                  .compute_ms = 1e3 * window.compute() / static_cast<double>(window_.iterations()),
                  .in_host_bytes = static_cast<double>(away.in_host),
                  .on_disk_bytes = static_cast<double>(away.on_disk)};
  for (std::size_t c = 0; c < kMemoryClasses; ++c)
    stats.peak_by_class[c] = static_cast<double>(memory.by_class[c].peak);
  return stats;
}

/// What the ranks spend: nothing with one rank. All are shown once, after the first line that is not of a cold start.
std::vector<RankStats> Trainer::report_ranks() {
  Communicator& world = session_.parallel.world;
  std::vector<RankStats> ranks{rank_stats()};
  if (world.size() > 1) ranks = gather_rank_stats(ranks.front(), world, *session_.device);
  // Of many ranks not at every line, so that they take little more of the file than the lines do.
  constexpr i64 kRanksPerLine = 16;
  if (rank_tables_++ % (1 + (world.size() - 1) / kRanksPerLine) == 0)
    metrics_.write(RankTable{.iteration = progress_.iteration, .ranks = ranks});
  if (world.size() == 1) return {};
  if (progress_.iteration > 1 && !std::exchange(ranks_are_shown_, true))
    log_.info(rank_table(ranks, session_.parallel.topology));
  if (config_.logging.straggler_factor > 0) name_stragglers(ranks);
  return ranks;
}

void Trainer::name_stragglers(const std::vector<RankStats>& ranks) {
  const double factor = config_.logging.straggler_factor;
  const GroupSecondsByName now = group_seconds(session_.parallel);
  const std::vector<GroupSecondsByName> groups =
      gather_group_seconds(now - std::exchange(group_seconds_, now), session_.parallel.world);
  for (const auto& text : {slow_ranks_.add(slow_rank(ranks, session_.parallel.topology, factor)),
                           slow_groups_.add(slow_group(groups, window_.seconds().clock, factor))})
    if (text) log_.warn(*text);
}

void Trainer::log_iteration() {
  share_gemm_choices(config_.device, *session_.device, session_.parallel.world);
  IterationStats stats = window_.means();
  stats.lm_loss = window_.mean_loss();
  stats.ranks = report_ranks();
  if (config_.logging.timing_log_level > 0)
    stats.timers =
        gather_timers(std::exchange(timers_, {}), static_cast<double>(window_.iterations()), session_.parallel.world);
  log_.info(iteration_line(stats, std::chrono::system_clock::now()));
  if (!stats.timers.empty()) log_.info(timer_lines(stats.timers, config_.logging.timing_log_option));
  tensorboard_.write_line(stats);
  if (!config_.logging.metrics_every_iteration) metrics_.write(stats);
  window_.restart();
}

void Trainer::evaluate_validation_sets(bool only_owed) {
  bool is_evaluated = false;
  for (const ValidationSet& set : datasets_.validation) {
    const std::string curve = set.name.empty() ? "validation" : "validation-" + set.name;
    if (signal() != 0) return;
    if (only_owed && !is_owed(curve)) continue;
    evaluate(curve, *set.dataset, config_.data.full_validation ? set.dataset->size() : evaluation_samples());
    is_evaluated = true;
  }
  if (is_evaluated && signal() == 0) sample_text();
}

void Trainer::evaluate(const std::string& curve, const Dataset& dataset, i64 samples) {
  session_.enter(Activity::Evaluating, progress_.iteration);
  const RankSeconds before = spent();
  const TimedRange range(session_.profiler.get(), "evaluate", Detail::Phase);
  const std::optional<EvaluationOutcome> outcome =
      evaluate_samples({.name = curve, .dataset = dataset, .samples = samples}, config_, state_, watch_, session_);
  if (!outcome) return;  // what matters then is to save in time
  const ValidationStats stats{
      .iteration = progress_.iteration, .split = curve, .lm_loss = outcome->loss, .tokens = outcome->tokens};
  log_.info(validation_lines(stats));
  tensorboard_.write(stats, progress_.consumed_samples);  // first: what metrics.jsonl has is not evaluated again
  metrics_.write(stats);
  leave_out(before);
}

bool Trainer::is_owed(const std::string& curve) {
  const auto has_it = [&] { return str(metrics_.has_evaluation(curve, progress_.iteration)); };
  return from_first(session_.parallel.world, has_it) == str(false);
}

void Trainer::sample_text() {
  if (!sampler_.is_on()) return;
  const RankSeconds before = spent();
  state_.set_watch(nullptr);  // its passes are not those of a step
  const std::optional<std::string> text = sampler_.next(state_, [this] { return watch_.signal(); });
  state_.set_watch(&watch_);
  if (!text) return;
  const std::string& prompt = config_.logging.sample_prompt;
  log_.info(str("sample at iteration ", progress_.iteration, ": ", prompt, *text));
  metrics_.write(TextSample{.iteration = progress_.iteration, .prompt = prompt, .text = *text});
  leave_out(before);
}

void Trainer::evaluate_what_is_owed() {
  const bool is_end = progress_.iteration >= train_iters_;
  const bool is_due_now =
      progress_.iteration > 0 ? is_due(config_.training.eval_interval) : config_.training.eval_on_start;
  if (is_end || is_due_now) evaluate_validation_sets(/*only_owed=*/true);
  if (is_end && datasets_.test && signal() == 0 && is_owed("test"))
    evaluate("test", *datasets_.test, evaluation_samples());
}

void Trainer::save(bool waits) {
  session_.enter(Activity::Saving, progress_.iteration);
  const RankSeconds before = spent();
  const TimedRange range(session_.profiler.get(), "save-checkpoint", Detail::Phase);
  share_gemm_choices(config_.device, *session_.device, session_.parallel.world);
  check_before_save();
  const SaveObserver observer = faults_.observer(progress_.iteration);
  waits ? saver_.save_and_wait(progress_, observer) : saver_.save(progress_, observer);
  leave_out(before);
}

void Trainer::check_before_save() {
  // Replicas share the work of saving: a checkpoint of ranks that differ would be a mixture.
  if (config_.training.check_weight_hash_across_dp_replicas_interval > 0)
    check_weights_across_replicas(state_, session_.parallel);
  const std::string found = weight_that_is_not_finite(state_, session_.parallel.world, *session_.device);
  if (found.empty()) return;
  const std::string what = str("iteration ", progress_.iteration, ": a weight is not finite (", found, ")");
  if (!config_.may_roll_back()) give_up(what + "; no checkpoint of it is written");
  roll_back(what);
}

/// By what all ranks agreed on in the steps that are finished, so that nobody waits to decide. train() says so of
/// signals.
bool Trainer::should_exit() {
  const TrainingConfig& training = config_.training;
  if (signal() != 0) return true;
  if (training.exit_duration_in_mins > 0 && state_.notices().minutes >= training.exit_duration_in_mins) {
    say_that_it_stops("training.exit_duration_in_mins is over");
    return true;
  }
  return is_due(training.exit_interval);
}

void Trainer::say_that_it_stops(const std::string& reason) {
  const std::string text =
      reason + (config_.checkpoint.save.empty() ? ": stopping; nothing is saved, because checkpoint.save is empty"
                                                : ": saving and stopping");
  log_.info(text);
  note(RunEvent::Kind::Stop, text);
}

void Trainer::write_start() {
  metrics_.write(RunStart{.iteration = progress_.iteration,
                          .train_iters = train_iters_,
                          .world_size = session_.parallel.world.size(),
                          .host = host_name(),
                          .program = split(version_text(), '\n').front(),
                          .device = std::string(enum_name(config_.device.device)),
                          .config = print_config(config_)});
}

}  // namespace mcpp
