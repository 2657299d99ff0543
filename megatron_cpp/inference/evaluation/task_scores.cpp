#include "megatron_cpp/inference/evaluation/task_scores.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

namespace mcpp {
namespace {

/// Returns the number of code points of UTF-8 text.
double characters(const std::string& text) {
  return static_cast<double>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Returns true if the first of the largest log-likelihoods per `size(continuation)` is an answer.
template <class Size>
bool chooses_answer(const TaskItem& item, const std::vector<Likelihood>& likelihoods, Size&& size) {
  std::vector<double> scores;
  for (std::size_t i = 0; i < likelihoods.size(); ++i)
    scores.push_back(likelihoods[i].log_likelihood / size(item.continuations[i]));
  const i64 chosen = std::ranges::max_element(scores) - scores.begin();
  return std::ranges::count(item.answers, chosen) > 0;
}

ItemScores score_item(const TaskItem& item, std::span<const Likelihood> likelihoods) {
  ItemScores scores{.continuations = {likelihoods.begin(), likelihoods.end()}};
  if (item.continuations.size() == 1) {
    scores.acc = likelihoods[0].is_greedy;
    return scores;
  }
  const auto chooses = [&](auto&& size) { return chooses_answer(item, scores.continuations, size); };
  scores.acc = chooses([](const std::string&) { return 1.0; });
  scores.acc_norm = chooses(characters);
  scores.acc_bytes = chooses([](const std::string& text) { return static_cast<double>(text.size()); });
  return scores;
}

TaskMetric mean_of(const std::string& name, const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  TaskMetric metric{
      .name = name, .value = std::accumulate(values.begin(), values.end(), 0.0) / count, .standard_error = {}};
  if (values.size() < 2) return metric;
  double squares = 0;
  for (const double value : values) squares += (value - metric.value) * (value - metric.value);
  metric.standard_error = std::sqrt(squares / (count - 1) / count);
  return metric;
}

TaskMetric share_of(const std::string& name, const std::vector<ItemScores>& items, bool ItemScores::*is_right) {
  std::vector<double> values;
  for (const ItemScores& item : items) values.push_back(item.*is_right ? 1 : 0);
  return mean_of(name, values);
}

TaskMetric perplexity_of(const std::vector<ItemScores>& items) {
  std::vector<double> losses;
  for (const ItemScores& item : items) losses.push_back(-item.continuations[0].log_likelihood);
  TaskMetric metric = mean_of("perplexity", losses);
  metric.value = std::exp(metric.value);
  if (metric.standard_error) metric.standard_error = metric.value * *metric.standard_error;
  return metric;
}

}  // namespace

TaskScores task_scores(const Task& task, std::span<const Likelihood> likelihoods) {
  TaskScores scores;
  for (const TaskItem& item : task.items) {
    scores.items.push_back(score_item(item, likelihoods.first(item.continuations.size())));
    likelihoods = likelihoods.subspan(item.continuations.size());
  }
  scores.metrics.push_back(share_of("acc", scores.items, &ItemScores::acc));
  if (task.is_choice()) {
    scores.metrics.push_back(share_of("acc_norm", scores.items, &ItemScores::acc_norm));
    scores.metrics.push_back(share_of("acc_bytes", scores.items, &ItemScores::acc_bytes));
  } else {
    scores.metrics.push_back(perplexity_of(scores.items));
  }
  return scores;
}

std::string samples_as_jsonl(const Task& task, const TaskScores& scores) {
  std::string lines;
  for (std::size_t i = 0; i < task.items.size(); ++i) {
    const ItemScores& item = scores.items[i];
    nlohmann::ordered_json json{{"task", task.name}, {"line", task.items[i].line}, {"acc", item.acc}};
    if (task.is_choice()) json.update({{"acc_norm", item.acc_norm}, {"acc_bytes", item.acc_bytes}});
    for (const Likelihood& likelihoods : item.continuations) {
      json["log_likelihoods"].push_back(likelihoods.log_likelihood);
      json["is_greedy"].push_back(likelihoods.is_greedy);
    }
    lines += json.dump() + "\n";
  }
  return lines;
}

}  // namespace mcpp
