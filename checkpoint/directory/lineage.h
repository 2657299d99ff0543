// Ancestry of the checkpoints of a run, which branches if `latest` is set back.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"

namespace mcpp {

/// Name in RunState::extra of a checkpoint's lineage. Absent in runs whose `latest` was never set back.
inline constexpr const char* kLineageName = "lineage";

/// Branches that led to a checkpoint, oldest first. A run begins a new branch if it resumes from a checkpoint
/// that is not the newest of its directory, because a user set `latest` back or newer ones are damaged; the newer
/// checkpoints are then abandoned.
struct Lineage {
  struct Branch {
    i64 id;         ///< unique in the directory
    i64 iteration;  ///< iteration at which it began
    bool operator==(const Branch&) const = default;
  };
  std::vector<Branch> branches = {};

  /// Parses the result of text(). Malformed text yields an empty lineage, which precedes every other.
  static Lineage parse(const std::string& text);
  /// Returns the branches as "<id>@<iteration>", separated by commas.
  std::string text() const;
  bool operator==(const Lineage&) const = default;
  /// Returns true if a checkpoint with this lineage at `iteration` led to one with `other` at `other_iteration`.
  bool precedes(i64 iteration, const Lineage& other, i64 other_iteration) const;
};

/// Returns the lineage of the checkpoints of a run that resumes at `iteration` of `lineage` and saves to `directory`: a
/// new branch if the directory holds checkpoints above `iteration`, otherwise the same lineage.
Lineage continue_lineage(const Lineage& lineage, i64 iteration, const Path& directory);

/// Returns the lineage of a checkpoint; an empty one if its manifest has none or cannot be read.
Lineage lineage_of(const Path& checkpoint);

}  // namespace mcpp
