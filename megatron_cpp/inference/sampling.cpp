#include "megatron_cpp/inference/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/philox.h"

namespace mcpp {
namespace {

/// Returns the tokens to choose from, most likely first: at most top_k of them.
std::vector<i32> candidates(std::span<const float> logits, i64 top_k) {
  std::vector<i32> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const i64 count = top_k > 0 ? std::min(top_k, static_cast<i64>(logits.size())) : static_cast<i64>(logits.size());
  const auto likelier = [&](i32 a, i32 b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  std::partial_sort(tokens.begin(), tokens.begin() + count, tokens.end(), likelier);
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

}  // namespace

i32 sample_token(std::span<const float> logits, const SamplingOptions& options, u64 draw) {
  if (options.temperature == 0) return candidates(logits, 1).front();
  const std::vector<i32> tokens = candidates(logits, options.top_k);
  std::vector<double> weights;
  for (i32 token : tokens) weights.push_back(std::exp((logits[token] - logits[tokens.front()]) / options.temperature));
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);

  double kept_weight = 0;
  std::size_t count = 0;
  while (count < weights.size() && kept_weight < options.top_p * total) kept_weight += weights[count++];

  const Philox4 bits = philox4x32(philox_key(static_cast<u64>(options.seed), "sampling"),
                                  {static_cast<u32>(draw), static_cast<u32>(draw >> 32), 0, 0});
  double remaining = uniform_open(bits[0]) * kept_weight;
  for (std::size_t i = 0; i < count; ++i) {
    remaining -= weights[i];
    if (remaining <= 0) return tokens[i];
  }
  return tokens[count - 1];
}

}  // namespace mcpp
