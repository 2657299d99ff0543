// Likelihood tasks, which test how likely the model finds continuations of a context. One JSON object per line:
//
//   {"context": "The cat sat on the", "continuations": ["mat", "moon"], "answer": 0}
//
// With several continuations (HellaSwag, ARC) the model chooses one. `answer` counts from 0; a list gives several right
// ones. With one continuation (LAMBADA) the question is whether the model would generate it, and `answer` is omitted.
// "target_delimiter" separates context and continuation; the default is a space. Other keys are ignored.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"

namespace mcpp {

struct TaskItem {
  i64 line = 0;  ///< line in the file, from 1
  std::string context;
  std::vector<std::string> continuations;  ///< at least one; none is empty
  std::vector<i64> answers;                ///< indices of right continuations; empty if there is only one continuation
  std::string target_delimiter = " ";
};

struct Task {
  std::string name;  ///< name of the file without folder and extension
  Path file;
  std::vector<TaskItem> items;

  /// Returns true if the model chooses among continuations, false if each item has one. The same for all items.
  bool is_choice() const { return items.front().continuations.size() > 1; }
  /// Returns "file:line" for messages.
  std::string place(const TaskItem& item) const;
};

/// Reads a file, compressed or not, as preprocess does. Throws BadInput, naming file and line, for malformed lines, and
/// for files that are empty or mix items of both kinds.
Task read_task(const Path& file);

}  // namespace mcpp
