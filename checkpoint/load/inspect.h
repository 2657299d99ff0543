// Implementation of the `checkpoint` command: each query is a function that returns data, and to_text() formats it.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "checkpoint/format/manifest.h"

namespace mcpp {

struct CheckpointSummary {
  Path directory;
  i64 iteration = 0;
  std::string saved_at = {};
  i64 bytes = 0;
  bool is_latest = false;                  ///< the first of checkpoints_in_order()
  std::vector<std::string> problems = {};  ///< found without reading the shards; empty if none
};
/// Returns the checkpoints of a folder by ascending iteration. Throws BadInput if there are none.
std::vector<CheckpointSummary> list_checkpoints(const Path& folder);
std::string to_text(const std::vector<CheckpointSummary>& list);

struct VerifyResult {
  Path directory;
  i64 bytes = 0;
  std::vector<std::string> problems = {};  ///< found by reading every byte; empty if none
};
/// Verifies one checkpoint, or all in a folder. Shows progress on a terminal.
std::vector<VerifyResult> verify_checkpoints(const Path& folder_or_checkpoint, const Log& log);
std::string to_text(const std::vector<VerifyResult>& results);

/// Returns the manifest as text: state, files, tensors with type, shape and number of shards, and element counts by
/// kind.
std::string describe_checkpoint(const Path& directory);

struct TensorDifference {
  std::string name = {};
  std::string reason = {};        ///< "only in ...", "shape ...", "type ..."; empty if the values differ
  double max_abs_difference = 0;  ///< infinity if only one of them is NaN
  i64 different_elements = 0;
};
struct CheckpointDifference {
  i64 compared = 0;  ///< tensors in both, with equal type and shape
  std::vector<TensorDifference> tensors = {};
  std::vector<std::string> state = {};  ///< "iteration: 100 and 200"; of long texts only the name
};
/// Compares two checkpoints element by element, independent of the layouts they were saved in.
CheckpointDifference diff_checkpoints(const Path& a, const Path& b);
std::string to_text(const CheckpointDifference& difference);

/// Returns the checkpoint for a path from a user: the path itself, or the first of checkpoints_in_order(). Throws
/// BadInput if there is none.
Path resolve_checkpoint(const Path& folder_or_checkpoint);

}  // namespace mcpp
