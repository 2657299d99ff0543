// Files that describe clusters to the planner: configs/hardware/*.toml.
#pragma once
#include <map>
#include <string>

#include "base/file.h"
#include "plan/hardware/hardware.h"

namespace mcpp {

/// One kind of cluster, as its file has it: the same for any number of ranks, with sections [device], [links] and
/// [host], or, as ranks of a processor share its cores and memory, apart for some numbers of them, with sections
/// [ranks_2.device] and so on for each.
struct HardwareKind {
  static constexpr i64 kAnyRanks = 0;
  std::map<i64, Hardware> by_ranks;  ///< by number of ranks, or one for kAnyRanks; never empty once read

  bool depends_on_ranks() const { return !by_ranks.contains(kAnyRanks); }
  /// For so many ranks: of the fewest that are at least as many. Of more than there are the last, whose links do not
  /// join them.
  const Hardware& of(i64 ranks) const;
};

/// Reads TOML text; `name` is the file name that messages show. Throws one BadInput error that lists every problem:
/// keys that are missing, unknown or refused, and rules between them.
HardwareKind parse_hardware(std::string_view toml, const std::string& name);

/// `name`: a file, or one of those in `folder` without its ending. BadInput, with those that there are, when it is
/// neither.
HardwareKind load_hardware(const std::string& name, const Path& folder);

/// As parse_hardware() reads it back, with the same numbers.
std::string print_hardware(const HardwareKind& kind);
/// The same for any number of ranks.
std::string print_hardware(const Hardware& hardware);

}  // namespace mcpp
