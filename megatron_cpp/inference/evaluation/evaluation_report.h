// Results of an evaluation, as text and as JSON.
#pragma once
#include <string>
#include <vector>

#include "megatron_cpp/inference/evaluation/perplexity.h"
#include "megatron_cpp/inference/evaluation/tasks.h"
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
  DType dtype = DType::F32;  ///< type of the model's computations
  std::vector<TextResult> texts;
  std::vector<TaskResult> tasks;

  /// Returns one line per value for a single text, otherwise a table of the texts and a table of the tasks. Prints only
  /// digits that do not depend on the layout: 6 for fp32 and fp64, 4 for lower precision.
  std::string as_text() const;
  /// Returns all digits: one object for a single text, otherwise an object with the lists "texts" and "tasks".
  std::string as_json() const;

 private:
  bool is_one_text() const { return texts.size() == 1 && tasks.empty(); }
};

}  // namespace mcpp
