// Damaged checkpoint files, as reported on all ranks.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "base/check.h"

namespace mcpp {

/// Error for a file whose content is not what was saved, so another checkpoint may work. Errors that would affect any
/// checkpoint, such as too many open files, are not of this type.
class DamagedFile : public Error {
 public:
  explicit DamagedFile(const std::string& what) : Error(ExitCode::BadInput, what) {}
};

struct Damage {
  int rank = 0;  ///< rank that found it
  std::string text;
};

/// Returns the first non-empty report; "" means that a rank found no damage.
inline std::optional<Damage> first_damage(std::span<const std::string> reports) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (!reports[rank].empty()) return Damage{static_cast<int>(rank), reports[rank]};
  }
  return std::nullopt;
}

}  // namespace mcpp
