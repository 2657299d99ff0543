#include "megatron_cpp/inference/evaluation/perplexity.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

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

namespace {

/// Texts that are scored together, one after another.
struct TextGroup {
  std::vector<i32> tokens;
  std::vector<EvaluationWindow> windows;
  std::vector<std::size_t> ends;  ///< of each text, in tokens

  void add(std::span<const i32> text, std::vector<EvaluationWindow> windows_of_text) {
    for (EvaluationWindow& window : windows_of_text) window.begin += static_cast<i64>(tokens.size());
    windows.insert(windows.end(), windows_of_text.begin(), windows_of_text.end());
    tokens.insert(tokens.end(), text.begin(), text.end());
    ends.push_back(tokens.size());
  }
};

bool is_counted(i32 before, i32 token, const EvaluationOptions& options) {
  const bool is_first = options.documents.skips_first_tokens && before == options.documents.eod;
  return !is_first && token != options.begin_token;
}

void score(GPTModel& stage, ParallelState& parallel, TextGroup group, const EvaluationOptions& options,
           std::vector<Perplexity>& results) {
  std::ranges::stable_sort(group.windows, std::greater{}, &EvaluationWindow::length);
  const TokenScores scores = score_windows(
      stage, parallel, group.tokens, group.windows,
      {.micro_batch_size = options.micro_batch_size, .documents = options.documents, .progress = options.progress});
  std::size_t begin = 0;
  for (const std::size_t end : group.ends) {
    Perplexity& result = results.emplace_back();
    for (std::size_t i = begin + 1; i < end; ++i) {
      if (!is_counted(group.tokens[i - 1], group.tokens[i], options)) continue;
      result.nll += scores.nll[i];
      ++result.tokens;
    }
    begin = end;
  }
}

}  // namespace

std::vector<Perplexity> evaluate_texts(GPTModel& stage, ParallelState& parallel,
                                       std::span<const std::span<const i32>> texts, const EvaluationOptions& options) {
  // Larger groups would need more memory without saving time.
  const auto enough = static_cast<std::size_t>(batches_per_round(parallel) * options.micro_batch_size);
  std::vector<Perplexity> results;
  for (TextGroup group; results.size() < texts.size(); group = {}) {
    while (results.size() + group.ends.size() < texts.size() && group.windows.size() < enough) {
      const std::span<const i32> text = texts[results.size() + group.ends.size()];
      group.add(text, evaluation_windows(static_cast<i64>(text.size()), options.window, options.stride));
    }
    score(stage, parallel, std::move(group), options, results);
  }
  return results;
}

}  // namespace mcpp
