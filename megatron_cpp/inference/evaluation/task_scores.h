// What the likelihoods of a task's continuations say about the model, as lm-evaluation-harness defines it.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megatron_cpp/inference/evaluation/task_requests.h"

namespace mcpp {

/// One item. Of a task that is no choice only `acc` is used: whether the model would have gone on like this.
struct ItemScores {
  std::vector<Likelihood> continuations;
  bool acc = false;        ///< the likeliest continuation is right
  bool acc_norm = false;   ///< so is the likeliest by character of the continuation, without what delimits it
  bool acc_bytes = false;  ///< and by byte of its UTF-8
};

/// A mean over the items of a task.
struct TaskMetric {
  std::string name;  ///< acc, acc_norm, acc_bytes; perplexity: exp(-mean log-likelihood) of the continuation
  double value = 0;
  std::optional<double> standard_error;  ///< of the mean; for perplexity by the delta method; none for a single item
};

struct TaskScores {
  std::vector<TaskMetric> metrics;
  std::vector<ItemScores> items;
};

/// `found` by item, by continuation.
TaskScores task_scores(const Task& task, std::span<const Likelihood> found);

/// One JSON object per item, with its line, what was found of each continuation and how that counts.
std::string samples_as_jsonl(const Task& task, const TaskScores& scores);

}  // namespace mcpp
