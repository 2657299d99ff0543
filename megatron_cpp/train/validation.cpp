#include "megatron_cpp/train/validation.h"

#include <algorithm>

#include "base/integer_math.h"
#include "comm/object_collectives.h"
#include "megatron_cpp/inference/generation.h"
#include "parallel/reduce_scalar.h"
#include "tensor/transfer.h"

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

TextSampler::TextSampler(StoredRef<Config> config, const SpecialTokens& special_tokens, Session& session)
    : config_(config), session_(session) {
  if (config_.logging.sample_prompt.empty()) return;
  tokenizer_.emplace(config_.data.tokenizer_model);
  prompt_ = tokenizer_->encode(config_.logging.sample_prompt);
  special_tokens.add_bos(prompt_);
  stop_tokens_ = special_tokens.stop_tokens(*tokenizer_);
  const auto tokens = static_cast<i64>(prompt_.size());
  check_input(tokens > 0 && tokens < config_.model.seq_length, "logging.sample_prompt: has ", tokens,
              " tokens; there must be at least one, and fewer than model.seq_length ", config_.model.seq_length);
}

std::optional<std::string> TextSampler::next(TrainingState& state, const std::function<int()>& signal) const {
  CpuDevice host;
  std::vector<i32> ids = prompt_;
  const i64 last = std::min(config_.model.seq_length, static_cast<i64>(ids.size()) + config_.logging.sample_tokens);
  while (static_cast<i64>(ids.size()) < last) {
    if (reduce_scalar(signal(), ReduceOp::Max, session_.parallel.world, host) != 0) return std::nullopt;
    const std::vector<float> logits = state.next_logits(sample_of(ids), static_cast<i64>(ids.size()) - 1);
    const i32 id = sample_token(logits, {.temperature = 0.8, .top_k = 40}, static_cast<u64>(ids.size()));
    if (std::ranges::count(stop_tokens_, id) > 0 || id >= tokenizer_->vocab_size()) break;
    ids.push_back(id);
  }
  return tokenizer_->decode(std::span(ids).subspan(prompt_.size()));
}

/// Pads `ids` to a sample. The logits of the ids do not depend on the padding.
MicroBatch TextSampler::sample_of(std::span<const i32> ids) const {
  const i64 length = config_.model.seq_length;
  std::vector<i32> padded(static_cast<std::size_t>(length), 0);
  std::ranges::copy(ids, padded.begin());
  MicroBatch batch{.tokens = Tensor::empty({length, 1}, DType::I32, *session_.device),
                   .targets = Tensor::empty({length, 1}, DType::I32, *session_.device),
                   .samples = {0}};
  write_values(padded, batch.tokens);
  write_values(std::vector<i32>(padded.size(), -1), batch.targets);
  return shard_microbatch(batch, config_.model, session_.parallel.context_parallel());
}

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
