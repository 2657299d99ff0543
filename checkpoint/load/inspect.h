// What the `checkpoint` command shows: each question is a function that returns the answer as data, and to_text()
// makes it readable.
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
  bool is_latest = false;
  std::vector<std::string> problems = {};  ///< without reading the shards; empty = looks sound
};
/// The checkpoints of a folder by ascending iteration. BadInput when there are none.
std::vector<CheckpointSummary> list_checkpoints(const Path& folder);
std::string to_text(const std::vector<CheckpointSummary>& list);

struct VerifyResult {
  Path directory;
  i64 bytes = 0;
  std::vector<std::string> problems = {};  ///< after reading every byte
};
/// Of one checkpoint, or of all in a folder. A terminal shows how far it is.
std::vector<VerifyResult> verify_checkpoints(const Path& folder_or_checkpoint, const Log& log);
std::string to_text(const std::vector<VerifyResult>& results);

/// The manifest as text: state, files, tensors with type, shape and number of shards, and the sums of elements by kind.
std::string describe_checkpoint(const Path& directory);

struct TensorDifference {
  std::string name = {};
  std::string reason = {};        ///< "only in ...", "shape ...", "type ..."; empty when the numbers differ
  double max_abs_difference = 0;  ///< infinity when one has a NaN where the other has not
  i64 different_elements = 0;
};
struct CheckpointDifference {
  i64 compared = 0;  ///< tensors in both, of equal type and shape
  std::vector<TensorDifference> tensors = {};
  std::vector<std::string> state = {};  ///< "iteration: 100 and 200"; long texts are only named
};
/// Compares two checkpoints element by element, whatever layouts they were saved in.
CheckpointDifference diff_checkpoints(const Path& a, const Path& b);
std::string to_text(const CheckpointDifference& difference);

/// The checkpoint that a path given by a user means: itself, or the one that `latest` names in a folder, or the newest
/// there. BadInput when there is none.
Path resolve_checkpoint(const Path& folder_or_checkpoint);

}  // namespace mcpp
