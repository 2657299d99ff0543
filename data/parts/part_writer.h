// Writes the tokens of units to their places.
#pragma once
#include <memory>
#include <vector>

#include "data/parts/joined_file.h"
#include "data/parts/unit_tokens.h"

namespace mcpp {

/// Writer of one process. Not thread-safe.
class PartWriter {
 public:
  explicit PartWriter(const PartsFolder& folder);

  /// Writes the whole blocks of the unit and, once these are durable, its part file, which holds the remaining bytes.
  /// `places` is [key].
  void write(const UnitTokens& tokens, const std::vector<Place>& places);

 private:
  /// Writes one key; returns the bytes outside of whole blocks.
  std::vector<std::byte> write_blocks(std::size_t key, const UnitTokens& tokens, const Place& place);

  const PartsFolder& folder_;
  std::vector<std::unique_ptr<JoinedFile>> joined_;  // [key]
};

}  // namespace mcpp
