// Check and lookup of the normalization tables inside sentencepiece models. The library follows their offsets without
// bounds checks, so that a damaged or hostile model could make it read out of bounds or crash.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// Throws BadInput, naming `source`, unless all offsets in every table of the model (a serialized ModelProto of
/// sentencepiece) stay within the table. Other defects are left to the library.
void check_charsmaps(std::string_view model, const std::string& source);

/// Normalization table of a sentencepiece model: replacements for strings of characters.
class Charsmap {
 public:
  Charsmap() = default;
  /// `table`, as stored in a model, must have passed check_charsmaps(). An empty one replaces nothing.
  explicit Charsmap(std::string_view table);

  bool empty() const { return units_.empty(); }
  /// Returns the replacement of the longest entry that `text` begins with, and how many bytes it stands for: 0 if there
  /// is no such entry.
  std::pair<std::string_view, std::size_t> longest_match(std::string_view text) const;
  /// Returns true if no entry is the ASCII character `byte`, or continues it with another one.
  bool keeps(u8 byte) const { return empty() || keeps_[byte]; }

 private:
  bool has_ascii_entry(u8 byte) const;

  std::vector<u32> units_;
  std::string replacements_;
  std::array<bool, 256> keeps_{};
};

}  // namespace mcpp
