// Metrics of a task, computed from the likelihoods of its continuations as in lm-evaluation-harness.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron_cpp/inference/evaluation/task_requests.h"

namespace mcpp {

/// Scores of one item. For tasks without choice only `acc` is used: whether the model would generate the continuation.
struct ItemScores {
  std::vector<Likelihood> continuations;
  bool acc = false;        ///< the most likely continuation is right
  bool acc_norm = false;   ///< the same, normalized by characters of the continuation without delimiter
  bool acc_bytes = false;  ///< the same, normalized by UTF-8 bytes
};

/// Mean over the items of a task.
struct TaskMetric {
  std::string name;  ///< acc, acc_norm, acc_bytes; perplexity: exp(-mean log-likelihood) of the continuation
  double value = 0;
  std::optional<double> standard_error;  ///< of the mean; for perplexity by the delta method; none for a single item
};

struct TaskScores {
  std::vector<TaskMetric> metrics;
  std::vector<ItemScores> items;
};

/// Computes the metrics. `likelihoods` is ordered by item, then by continuation.
TaskScores task_scores(const Task& task, std::span<const Likelihood> likelihoods);

/// Returns one JSON object per item, with its line number, the score of each continuation and the resulting metrics.
std::string samples_as_jsonl(const Task& task, const TaskScores& scores);

}  // namespace mcpp
