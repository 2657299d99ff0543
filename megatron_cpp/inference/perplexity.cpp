#include "megatron_cpp/inference/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Inputs and targets of windows of equal length side by side, [s, b]; only scored targets are not -1.
struct WindowBatch {
  Tensor tokens, targets;
};

WindowBatch make_batch(std::span<const i32> tokens, std::span<const EvaluationWindow> windows, Device& device) {
  const i64 batch = static_cast<i64>(windows.size()), length = windows.front().length - 1;
  std::vector<i32> inputs, targets;
  for (i64 s = 0; s < length; ++s) {
    for (const EvaluationWindow& window : windows) {
      const bool scored = s >= length - window.scored;
      inputs.push_back(tokens[static_cast<std::size_t>(window.begin + s)]);
      targets.push_back(scored ? tokens[static_cast<std::size_t>(window.begin + s + 1)] : -1);
    }
  }
  WindowBatch result{Tensor::empty({length, batch}, DType::I32, device),
                     Tensor::empty({length, batch}, DType::I32, device)};
  write_values(inputs, result.tokens);
  write_values(targets, result.targets);
  return result;
}

/// Losses as fp64.
std::vector<double> values_of(const Tensor& t) {
  if (t.dtype() == DType::F64) return read_values<double>(t);
  const std::vector<float> values = read_values<float>(t);
  return {values.begin(), values.end()};
}

/// Windows that can share a batch: of the same length.
std::span<const EvaluationWindow> next_batch(std::span<const EvaluationWindow> windows, i64 micro_batch_size) {
  std::size_t count = 1;
  while (count < windows.size() && count < static_cast<std::size_t>(micro_batch_size) &&
         windows[count].length == windows.front().length) {
    ++count;
  }
  return windows.first(count);
}

}  // namespace

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

Perplexity evaluate_tokens(GPTModel& model, std::span<const i32> tokens, i64 stride, i64 micro_batch_size,
                           const std::function<void(i64, i64)>& progress) {
  const std::vector<EvaluationWindow> all =
      evaluation_windows(static_cast<i64>(tokens.size()), model.context().config.seq_length, stride);
  Perplexity result;
  for (std::span<const EvaluationWindow> left = all; !left.empty();) {
    const auto windows = next_batch(left, micro_batch_size);
    const WindowBatch batch = make_batch(tokens, windows, model.context().device);
    Pass pass;
    pass.training = false;
    pass.keeps_stash = false;
    const TokenLosses losses = model.loss(batch.tokens, batch.targets, 1, pass);
    const std::vector<double> per_token = values_of(losses.per_token);
    const i64 columns = static_cast<i64>(windows.size()), rows = batch.tokens.dim(0);
    for (i64 b = 0; b < columns; ++b) {
      for (i64 s = rows - windows[static_cast<std::size_t>(b)].scored; s < rows; ++s) {
        result.nll += per_token[static_cast<std::size_t>(s * columns + b)];
      }
    }
    result.tokens += losses.tokens();
    left = left.subspan(windows.size());
    progress(static_cast<i64>(all.size() - left.size()), static_cast<i64>(all.size()));
  }
  return result;
}

}  // namespace mcpp
