// Branches of a run: which checkpoints of a directory are ancestors of which.
#pragma once
#include <string>
#include <vector>

#include "base/file.h"

namespace mcpp {

/// Name in RunState::extra of a checkpoint's lineage. Absent in runs that were never set back.
inline constexpr const char* kLineageName = "lineage";

/// The branches that led to a checkpoint, oldest first. A run that resumes below other checkpoints of its directory,
/// since a user set `latest` back or since newer ones are damaged, begins a branch; those others are then abandoned.
struct Lineage {
  struct Branch {
    i64 id;         ///< unique in the directory
    i64 iteration;  ///< at which it began
    bool operator==(const Branch&) const = default;
  };
  std::vector<Branch> branches = {};

  /// Parses text(). Text of another form is an empty lineage, with which every checkpoint counts.
  static Lineage parse(const std::string& text);
  /// "<id>@<iteration>", separated by commas.
  std::string text() const;
  bool operator==(const Lineage&) const = default;
  /// Returns true if a checkpoint with this lineage at `iteration` led to one with `other` at `other_iteration`.
  bool precedes(i64 iteration, const Lineage& other, i64 other_iteration) const;
};

/// Returns the lineage of what a run saves that resumes at `iteration` of `lineage` and saves to `directory`: another
/// branch if the directory holds checkpoints above `iteration`, else the same.
Lineage continue_lineage(const Lineage& lineage, i64 iteration, const Path& directory);

/// Returns the lineage of a checkpoint; an empty one if its manifest has none or cannot be read.
Lineage lineage_of(const Path& checkpoint);

}  // namespace mcpp
