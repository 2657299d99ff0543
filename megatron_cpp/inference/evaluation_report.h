// What an evaluation found, for people and for programs.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/inference/perplexity.h"
#include "megatron_cpp/inference/task_scores.h"

namespace mcpp {

struct TextResult {
  std::string name;
  Perplexity perplexity;
};

struct TaskResult {
  Task task;
  TaskScores scores;
};

struct EvaluationReport {
  Path checkpoint;
  std::vector<TextResult> texts;
  std::vector<TaskResult> tasks;

  /// One text alone: a line for each number. Otherwise a table of the texts and one of the tasks.
  std::string as_text() const;
  /// One text alone: an object of its numbers. Otherwise one with lists of such, "texts" and "tasks".
  std::string as_json() const;

 private:
  bool is_one_text() const { return texts.size() == 1 && tasks.empty(); }
};

}  // namespace mcpp
