#include "megatron_cpp/train/evaluation.h"

#include "base/integer_math.h"

namespace mcpp {

std::optional<EvaluationOutcome> evaluate_samples(const HeldOutSamples& text, const Config& config,
                                                  TrainingState& state, StepProgress& watch, Session& session) {
  const i64 batch_size = config.batch_sizes().back().batch_size;
  const i64 count = ceil_div(text.samples, batch_size);
  BatchStream batches(text.dataset, config, {{0, batch_size}}, 0, session, text.samples);
  double loss_sum = 0;
  i64 tokens = 0;
  const auto is_stopped = [&] { return state.stop_request().signal != 0; };
  bool is_running = true;
  // The outcome of a batch is awaited after the next batch is queued, so that a GPU never idles.
  for (i64 i = 0; is_running; ++i) {
    is_running = i < count && !is_stopped();
    watch.begin(str(text.name, " ", i + 1, "/", count));
    if (is_running) state.start_evaluation(batches.next());
    if (i == 0) continue;
    const EvaluationOutcome outcome = state.evaluation();
    if (outcome.tokens > 0) loss_sum += outcome.loss * static_cast<double>(outcome.tokens);
    tokens += outcome.tokens;
  }
  if (is_stopped()) return std::nullopt;
  return EvaluationOutcome{.loss = loss_sum / static_cast<double>(tokens), .tokens = tokens};
}

}  // namespace mcpp
