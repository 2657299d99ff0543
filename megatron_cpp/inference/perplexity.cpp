#include "megatron_cpp/inference/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace mcpp {
std::vector<EvaluationWindow> evaluation_windows(i64 tokens, i64 seq_length, i64 stride) {
  MCPP_CHECK(stride >= 1 && stride <= seq_length, "stride ", stride, " for windows of ", seq_length);
  std::vector<EvaluationWindow> windows;
  for (i64 scored_to = 1; scored_to < tokens;) {  // tokens [1, scored_to) are scored
    const i64 step = windows.empty() ? seq_length : stride;
    const i64 end = std::min(tokens, scored_to + step);
    const i64 begin = std::max<i64>(0, end - 1 - seq_length);
    windows.push_back({begin, end - begin, end - scored_to});
    scored_to = end;
  }
  return windows;
}

double Perplexity::token_perplexity() const {
  return std::exp(loss());
}
double Perplexity::word_perplexity() const {
  return std::exp(nll / static_cast<double>(words));
}
double Perplexity::byte_perplexity() const {
  return std::exp(nll / static_cast<double>(bytes));
}
double Perplexity::bits_per_byte() const {
  return nll / static_cast<double>(bytes) / std::numbers::ln2;
}

Perplexity evaluate_tokens(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens,
                           const EvaluationOptions& options) {
  const std::vector<EvaluationWindow> windows =
      evaluation_windows(static_cast<i64>(tokens.size()), stage.context().config.seq_length, options.stride);
  const TokenScores scores = score_windows(
      stage, parallel, tokens, windows, {.micro_batch_size = options.micro_batch_size, .progress = options.progress});
  Perplexity result;
  result.nll = std::accumulate(scores.nll.begin(), scores.nll.end(), 0.0);
  for (const EvaluationWindow& window : windows) result.tokens += window.scored;
  return result;
}

}  // namespace mcpp
