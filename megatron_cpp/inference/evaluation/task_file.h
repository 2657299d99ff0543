// Likelihood tasks: what a model finds likely after a context. One JSON object per line:
//
//   {"context": "The cat sat on the", "continuations": ["mat", "moon"], "answer": 0}
//
// With several continuations (HellaSwag, ARC) the model chooses one; answer counts from 0, a list names several right
// ones. With one (LAMBADA) the question is whether the model would go on with it; answer is left out.
// "target_delimiter" stands between context and continuation, a space unless the line says otherwise. Other keys are
// not read.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"

namespace mcpp {

struct TaskItem {
  i64 line = 0;  ///< of the file, from 1
  std::string context;
  std::vector<std::string> continuations;  ///< at least one; none is empty
  std::vector<i64> answers;                ///< of them; empty where there is but one
  std::string target_delimiter = " ";
};

struct Task {
  std::string name;  ///< of the file, without folder and ending
  Path file;
  std::vector<TaskItem> items;

  /// Whether the model chooses; otherwise each item has one continuation. The same for all items.
  bool is_choice() const { return items.front().continuations.size() > 1; }
  /// "file:line", for messages.
  std::string place(const TaskItem& item) const;
};

/// Text or packed as preprocess reads it. BadInput, naming file and line, for lines that are no such object, and for
/// files without any or with items of both shapes.
Task read_task(const Path& file);

}  // namespace mcpp
