// Writes the tokens of units to their places.
#pragma once
#include <memory>
#include <vector>

#include "data/preprocess/distributed/shared_output_file.h"
#include "data/preprocess/distributed/unit_tokens.h"

namespace mcpp {

/// Writer of one process. Not thread-safe.
class PartWriter {
 public:
  explicit PartWriter(const PartsFolder& folder);

  /// Writes the whole blocks of the unit and, once these are durable, its part file, which holds the remaining bytes.
  /// `output_ranges` is [key].
  void write(const UnitTokens& tokens, const std::vector<OutputRange>& output_ranges);

 private:
  /// Writes one key; returns the bytes outside of whole blocks.
  std::vector<std::byte> write_blocks(std::size_t key, const UnitTokens& tokens, const OutputRange& output_range);

  const PartsFolder& folder_;
  std::vector<std::unique_ptr<SharedOutputFile>> output_files_;  // [key]
};

}  // namespace mcpp
