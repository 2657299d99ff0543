// Files that describe clusters to the planner: configs/hardware/*.toml.
#pragma once
#include <map>
#include <string>

#include "base/file.h"
#include "plan/hardware/hardware.h"

namespace mcpp {

/// Kind of cluster described by a file. The file has sections [device], [links] and [host] for any number of ranks or,
/// because ranks on one CPU share its cores and memory, separate sections [ranks_2.device] and so on for some numbers
/// of ranks.
struct HardwareKind {
  static constexpr i64 kAnyRanks = 0;
  std::map<i64, Hardware> by_ranks;  ///< by number of ranks, or a single entry for kAnyRanks; not empty after parsing

  bool depends_on_ranks() const { return !by_ranks.contains(kAnyRanks); }
  /// Returns the hardware for `ranks` ranks: the entry with the smallest sufficient number of ranks, or, if there is
  /// none, the last entry, whose links support fewer ranks.
  const Hardware& for_ranks(i64 ranks) const;
};

/// Parses TOML text; `name` is the file name in messages. Throws one BadInput error that lists every problem: missing,
/// unknown and invalid keys, and violated rules between them.
HardwareKind parse_hardware(std::string_view toml, const std::string& name);

/// Loads the file `name` or, for a name without extension, the file of that name in `folder`. Throws BadInput that
/// lists the available names if neither exists.
HardwareKind load_hardware(const std::string& name, const Path& folder);

/// Returns text that parse_hardware() reads back to identical values.
std::string print_hardware(const HardwareKind& kind);
/// Returns the text of hardware that applies to any number of ranks.
std::string print_hardware(const Hardware& hardware);

}  // namespace mcpp
