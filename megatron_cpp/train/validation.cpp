#include "megatron_cpp/train/validation.h"

#include "comm/object_collectives.h"
#include "megatron_cpp/train/evaluation.h"

namespace mcpp {

Validation::Validation(StoredRef<Config> config, StoredRef<Datasets> datasets, Session& session, TrainingState& state,
                       StepProgress& watch, const SpecialTokens& special_tokens, MetricsWriter& metrics,
                       TensorboardMetrics& tensorboard, StoredRef<Log> log)
    : config_(config),
      datasets_(datasets),
      session_(session),
      state_(state),
      watch_(watch),
      metrics_(metrics),
      tensorboard_(tensorboard),
      log_(log),
      sampler_(config, special_tokens, session) {}

void Validation::evaluate_validation_sets(const TrainingProgress& progress, bool only_missing) {
  bool is_evaluated = false;
  for (const ValidationSet& set : datasets_.validation) {
    const std::string curve = set.name.empty() ? "validation" : "validation-" + set.name;
    if (is_stopped()) return;
    if (only_missing && !needs_evaluation(curve, progress.iteration)) continue;
    evaluate(curve, *set.dataset, config_.data.full_validation ? set.dataset->size() : config_.evaluation_samples(),
             progress);
    is_evaluated = true;
  }
  if (is_evaluated && !is_stopped()) sample_text(progress.iteration);
}

void Validation::evaluate_test_set(const TrainingProgress& progress) {
  if (!datasets_.test || is_stopped() || !needs_evaluation("test", progress.iteration)) return;
  evaluate("test", *datasets_.test, config_.evaluation_samples(), progress);
}

void Validation::evaluate(const std::string& curve, const Dataset& dataset, i64 samples,
                          const TrainingProgress& progress) {
  session_.enter(Activity::Evaluating, progress.iteration);
  const TimedRange range(session_.profiler.get(), "evaluate", Detail::Phase);
  const std::optional<EvaluationOutcome> outcome =
      evaluate_samples({.name = curve, .dataset = dataset, .samples = samples}, config_, state_, watch_, session_);
  if (!outcome) return;
  const ValidationStats stats{
      .iteration = progress.iteration, .split = curve, .lm_loss = outcome->loss, .tokens = outcome->tokens};
  log_.info(validation_lines(stats));
  tensorboard_.write(stats, progress.consumed_samples);  // first, because evaluations in metrics.jsonl are not repeated
  metrics_.write(stats);
}

bool Validation::needs_evaluation(const std::string& curve, i64 iteration) {
  const auto has_result = [&] { return str(metrics_.has_evaluation(curve, iteration)); };
  return broadcast_from_rank0(session_.parallel.world, has_result) == str(false);
}

void Validation::sample_text(i64 iteration) {
  if (!sampler_.is_on()) return;
  state_.set_observer(nullptr);  // its passes do not belong to a step
  const std::optional<std::string> text = sampler_.next(state_, [this] { return watch_.signal(); });
  state_.set_observer(&watch_);
  if (!text) return;
  const std::string& prompt = config_.logging.sample_prompt;
  log_.info(str("sample at iteration ", iteration, ": ", prompt, *text));
  metrics_.write(TextSample{.iteration = iteration, .prompt = prompt, .text = *text});
}

}  // namespace mcpp
