// Brings the tokens of units to their places.
#pragma once
#include <memory>
#include <vector>

#include "data/parts/joined_file.h"
#include "data/parts/unit_tokens.h"

namespace mcpp {

/// Of one process. Not for several threads at once.
class PartWriter {
 public:
  explicit PartWriter(const PartsFolder& folder);

  /// Writes the whole blocks of the unit and, when they are on the disk, its part, which has the rest. [key] places.
  void write(const UnitTokens& tokens, const std::vector<Place>& places);

 private:
  /// Of one key; gives what lies outside of whole blocks.
  std::vector<std::byte> write_blocks(std::size_t key, const UnitTokens& tokens, const Place& place);

  const PartsFolder& folder_;
  std::vector<std::unique_ptr<JoinedFile>> joined_;  // [key]
};

}  // namespace mcpp
