// What an evaluation found, for people and for programs.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/inference/evaluation/perplexity.h"
#include "megatron_cpp/inference/evaluation/task_scores.h"
#include "tensor/dtype.h"

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
  DType dtype = DType::F32;  ///< in which the model computed
  std::vector<TextResult> texts;
  std::vector<TaskResult> tasks;

  /// One text alone: a line for each number. Otherwise a table of the texts and one of the tasks. With the digits that
  /// do not hang on the layout: 6 of fp32 and fp64, 4 of narrower types.
  std::string as_text() const;
  /// With all digits. One text alone: an object of its numbers. Otherwise one with lists of such, "texts" and "tasks".
  std::string as_json() const;

 private:
  bool is_one_text() const { return texts.size() == 1 && tasks.empty(); }
};

}  // namespace mcpp
