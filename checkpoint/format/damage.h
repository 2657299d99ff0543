// Files that are not what was saved, as all ranks know it.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "base/check.h"

namespace mcpp {

/// What a file holds is not what was saved: another checkpoint may do. Unlike errors that would befall any, such as too
/// many open files.
class DamagedFile : public Error {
 public:
  explicit DamagedFile(const std::string& what) : Error(ExitCode::BadInput, what) {}
};

struct Damage {
  int rank = 0;  ///< that found it
  std::string text;
};

/// Of what each rank reports, "" meaning that it found nothing: the first.
inline std::optional<Damage> first_damage(std::span<const std::string> reports) {
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (!reports[rank].empty()) return Damage{static_cast<int>(rank), reports[rank]};
  }
  return std::nullopt;
}

}  // namespace mcpp
