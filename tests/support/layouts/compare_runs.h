// Comparison of two training runs of one task.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <string>

#include "model/config/block_spec.h"
#include "tests/support/layouts/layout_run.h"

namespace mcpp::test {

inline void expect_same_bits(const RunResult& a, const RunResult& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.grad_norms, b.grad_norms);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, values] : a.weights) EXPECT_EQ(values, b.weights.at(name)) << name;
  ASSERT_EQ(a.averages.size(), b.averages.size());
  for (const auto& [name, values] : a.averages) EXPECT_EQ(values, b.averages.at(name)) << "average of " << name;
}

/// Checks that the task was learned, unless MCPP_TEST_MAX_STEPS has shortened the run.
inline void expect_learned(const RunResult& run, const RunTask& task) {
  if (std::ssize(run.losses) < task.steps) return;
  EXPECT_LT(run.losses.back(), 0.9 * run.losses.front()) << "the task is not learned";
}

/// Removes the bias of the keys. It shifts all scores of a query equally, so its gradient is 0 except for rounding,
/// which AdamW amplifies to steps of full length. Layout: [groups, (q + k + v) * head_dim].
inline Numbers without_key_bias(const std::string& name, const Numbers& values, const ModelConfig& config) {
  if (!name.ends_with("linear_qkv.bias")) return values;
  const bool is_mtp = name.starts_with("mtp.");
  const i64 index = std::stoll(name.substr(std::string(is_mtp ? "mtp.layers." : "decoder.layers.").size()));
  const i64 layer = is_mtp ? config.num_layers + index : index;
  const AttentionSpec attention = *block_spec(config, layer).attention();
  const i64 d = attention.head_dim, q = attention.num_heads / attention.num_query_groups * d, group = q + 2 * d;
  Numbers kept;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const i64 at = static_cast<i64>(i) % group;
    if (at < q || at >= q + d) kept.push_back(values[i]);
  }
  return kept;
}

/// Checks that losses differ by at most `loss` and final weights by at most `weights` (relative, in the Euclidean
/// norm).
inline void expect_near(const RunResult& a, const RunResult& b, double loss, double weights,
                        const ModelConfig& config) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i)
    EXPECT_LE(std::abs(a.losses[i] - b.losses[i]) / b.losses[i], loss) << "step " << i;
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, values] : b.weights) {
    EXPECT_LE(
        relative_distance(without_key_bias(name, a.weights.at(name), config), without_key_bias(name, values, config)),
        weights)
        << name;
  }
}

/// Returns all weights of a run, and their averages, as one vector.
inline Numbers all_weights(const RunResult& run, const ModelConfig& config) {
  Numbers all;
  for (const Weights* weights : {&run.weights, &run.averages}) {
    for (const auto& [name, values] : *weights) {
      const Numbers kept = without_key_bias(name, values, config);
      all.insert(all.end(), kept.begin(), kept.end());
    }
  }
  return all;
}

}  // namespace mcpp::test
