#include "megatron_cpp/train/evaluator.h"

#include <algorithm>

#include "base/integer_math.h"
#include "base/strings.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/inference/generation.h"
#include "parallel/reduce_scalar.h"
#include "tensor/transfer.h"

namespace mcpp {

namespace {

/// Prefix of the splits of evaluations of averaged weights. Names of validation sets cannot produce it, because they
/// follow "validation-".
constexpr const char* kEmaSplitPrefix = "ema-";

}  // namespace

Evaluator::Evaluator(const RunContext& run, StoredRef<Datasets> datasets, TrainingState& state, StepProgress& progress,
                     const SpecialTokens& special_tokens)
    : run_(run), datasets_(datasets), state_(state), progress_(progress) {
  const Config& config = run.config;
  if (!config.training.eval_tasks.empty()) {
    tasks_.emplace(
        config.training.eval_tasks,
        [&] { return task_encoder(Tokenizer(config.data.tokenizer_model), special_tokens); }, config.model.seq_length,
        run.world());
    // Continuations are short, so their logits need less memory than the layers.
    check_scoring_memory(*state.chunks().front().model, run.session.parallel,
                         {.seq = config.model.seq_length, .batch = config.training.micro_batch_size});
  }
  if (config.logging.sample_prompt.empty()) return;
  tokenizer_.emplace(config.data.tokenizer_model);
  prompt_ = tokenizer_->encode(config.logging.sample_prompt);
  special_tokens.add_bos(prompt_);
  stop_tokens_ = special_tokens.stop_tokens(*tokenizer_);
  const auto tokens = static_cast<i64>(prompt_.size());
  check_input(tokens > 0 && tokens < config.model.seq_length, "logging.sample_prompt: has ", tokens,
              " tokens; there must be at least one, and fewer than model.seq_length ", config.model.seq_length);
}

void Evaluator::evaluate_validation_sets(const TrainingProgress& training, bool only_missing) {
  const std::vector<DueEvaluation> due = validation_sets("", training.iteration, only_missing);
  evaluate_all(due, training);
  if (tasks_ && !is_stopped() && (!only_missing || has_missing_tasks(training.iteration))) score_tasks(training);
  if (!due.empty() && !is_stopped() && tokenizer_) log_sample(training.iteration);
  if (run_.config.training.eval_ema)
    evaluate_ema(validation_sets(kEmaSplitPrefix, training.iteration, only_missing), training);
}

bool Evaluator::has_missing_tasks(i64 iteration) {
  return broadcast_from_rank0(run_.world(), [&] {
    return std::ranges::any_of(tasks_->names(), [&](const std::string& name) {
      return !run_.logger.has_evaluation(TaskStats{.task = name}.split(), iteration);
    });
  });
}

void Evaluator::score_tasks(const TrainingProgress& training) {
  run_.session.enter(Activity::Evaluating, training.iteration);
  const TimedRange range(run_.session.profiler.get(), "evaluate", Detail::Phase);
  CpuDevice host;
  const std::optional<std::vector<TaskResult>> results = tasks_->score(
      *state_.chunks().front().model, run_.session.parallel,
      {.micro_batch_size = run_.config.training.micro_batch_size,
       .documents = document_rules(run_.config.data),
       .progress = [&](i64 done, i64 all) { run_.log.progress(str("scored ", done, " of ", all, " continuations")); }},
      [&] { return reduce_scalar(progress_.signal(), ReduceOp::Max, run_.world(), host) != 0; });
  if (!results) return;
  for (const TaskResult& result : *results) {
    TaskStats stats{.iteration = training.iteration,
                    .task = result.task.name,
                    .items = std::ssize(result.task.items),
                    .consumed_samples = training.consumed_samples};
    for (const TaskMetric& metric : result.scores.metrics)
      stats.metrics.push_back({metric.name, metric.value, metric.standard_error});
    run_.logger.log_task(stats);
  }
}

void Evaluator::evaluate_test_set(const TrainingProgress& training) {
  if (!datasets_.test) return;
  const auto due = [&](const std::string& prefix) {
    std::vector<DueEvaluation> list;
    if (const std::string split = prefix + "test"; needs_evaluation(split, training.iteration))
      list.push_back({split, *datasets_.test, run_.config.evaluation_samples()});
    return list;
  };
  evaluate_all(due(""), training);
  if (run_.config.training.eval_ema) evaluate_ema(due(kEmaSplitPrefix), training);
}

std::vector<Evaluator::DueEvaluation> Evaluator::validation_sets(const std::string& prefix, i64 iteration,
                                                                 bool only_missing) {
  const Config& config = run_.config;
  std::vector<DueEvaluation> list;
  for (const ValidationSet& set : datasets_.validation) {
    const std::string split = prefix + (set.name.empty() ? "validation" : "validation-" + set.name);
    if (only_missing && !needs_evaluation(split, iteration)) continue;
    list.push_back(
        {split, *set.dataset, config.data.full_validation ? set.dataset->size() : config.evaluation_samples()});
  }
  return list;
}

void Evaluator::evaluate_all(const std::vector<DueEvaluation>& list, const TrainingProgress& training) {
  for (const DueEvaluation& due : list) {
    if (is_stopped()) return;
    evaluate(due, training);
  }
}

void Evaluator::evaluate_ema(const std::vector<DueEvaluation>& list, const TrainingProgress& training) {
  if (list.empty() || is_stopped()) return;
  state_.swap_ema();
  evaluate_all(list, training);
  state_.swap_ema();
}

void Evaluator::evaluate(const DueEvaluation& due, const TrainingProgress& training) {
  run_.session.enter(Activity::Evaluating, training.iteration);
  const TimedRange range(run_.session.profiler.get(), "evaluate", Detail::Phase);
  const std::optional<EvaluationOutcome> outcome = mean_loss(due.split, due.dataset, due.samples);
  if (!outcome) return;
  run_.logger.log_evaluation({.iteration = training.iteration,
                              .split = due.split,
                              .lm_loss = outcome->loss,
                              .tokens = outcome->tokens,
                              .consumed_samples = training.consumed_samples});
}

std::optional<EvaluationOutcome> Evaluator::mean_loss(const std::string& split, const Dataset& dataset, i64 samples) {
  const i64 batch_size = run_.config.batch_sizes().back().batch_size;
  const i64 count = ceil_div(samples, batch_size);
  BatchStream batches(dataset, run_.config, {{0, batch_size}}, 0, run_.session, {.end = samples});
  double loss_sum = 0;
  i64 tokens = 0;
  bool is_running = true;
  // The outcome of a batch is awaited after the next batch is queued, so that a GPU never idles.
  for (i64 i = 0; is_running; ++i) {
    is_running = i < count && !is_stopped();
    progress_.begin(str(split, " ", i + 1, "/", count));
    if (is_running) state_.start_evaluation(batches.next());
    if (i == 0) continue;
    const EvaluationOutcome outcome = state_.evaluation();
    if (outcome.tokens > 0) loss_sum += outcome.loss * static_cast<double>(outcome.tokens);
    tokens += outcome.tokens;
  }
  if (is_stopped()) return std::nullopt;
  return EvaluationOutcome{.loss = loss_sum / static_cast<double>(tokens), .tokens = tokens};
}

bool Evaluator::needs_evaluation(const std::string& split, i64 iteration) {
  return broadcast_from_rank0(run_.world(), [&] { return !run_.logger.has_evaluation(split, iteration); });
}

void Evaluator::log_sample(i64 iteration) {
  state_.set_observer(nullptr);  // its passes do not belong to a step
  const std::optional<std::string> text = generate_sample();
  state_.set_observer(&progress_);
  if (text)
    run_.logger.log_sample({.iteration = iteration, .prompt = run_.config.logging.sample_prompt, .text = *text});
}

std::optional<std::string> Evaluator::generate_sample() const {
  const Config& config = run_.config;
  CpuDevice host;
  std::vector<i32> ids = prompt_;
  const i64 last = std::min(config.model.seq_length, static_cast<i64>(ids.size()) + config.logging.sample_tokens);
  while (static_cast<i64>(ids.size()) < last) {
    if (reduce_scalar(progress_.signal(), ReduceOp::Max, run_.world(), host) != 0) return std::nullopt;
    const std::vector<float> logits = state_.next_logits(padded_sample(ids), static_cast<i64>(ids.size()) - 1);
    const i32 id = sample_token(logits, {.temperature = 0.8, .top_k = 40}, static_cast<u64>(ids.size()));
    if (std::ranges::count(stop_tokens_, id) > 0 || id >= tokenizer_->vocab_size()) break;
    ids.push_back(id);
  }
  return tokenizer_->decode(std::span(ids).subspan(prompt_.size()));
}

/// Pads `ids` to a sample. The logits of the ids do not depend on the padding.
MicroBatch Evaluator::padded_sample(std::span<const i32> ids) const {
  const ModelConfig& model = run_.config.model;
  Device& device = *run_.session.device;
  std::vector<i32> padded(static_cast<std::size_t>(model.seq_length), 0);
  std::ranges::copy(ids, padded.begin());
  const Shape shape{model.seq_length, 1};
  const MicroBatch batch{.tokens = integers(padded, shape, device),
                         .targets = integers(std::vector<i32>(padded.size(), -1), shape, device),
                         .samples = {0}};
  return shard_microbatch(batch, model, run_.session.parallel.context_parallel());
}

}  // namespace mcpp
