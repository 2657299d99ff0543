// Normalization of texts as sentencepiece does it.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/types.h"
#include "data/tokenizer/byte_trie.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/text_coder.h"

namespace mcpp {

// Check and lookup of the normalization tables inside sentencepiece models. The library follows their offsets without
// bounds checks, so that a damaged or hostile model could make it read out of bounds or crash.

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
  /// Returns the replacement of the longest entry that `text` begins with, and the number of bytes that it replaces: 0
  /// if there is no such entry.
  std::pair<std::string_view, std::size_t> longest_match(std::string_view text) const;
  /// Returns true if every entry that begins with the ASCII character `byte` continues with a non-ASCII character.
  bool keeps(u8 byte) const { return empty() || keeps_[byte]; }

 private:
  bool has_ascii_entry(u8 byte) const;

  std::vector<u32> units_;
  std::string replacements_;
  std::array<bool, 256> keeps_{};
};

/// Normalizer of a sentencepiece model. Thread-safe. Replaces the library's normalizer, which runs only as a step of
/// encoding and does not support parts of documents.
class SentencepieceNormalizer {
 public:
  /// The model must have escape_whitespaces, and its table must have passed check_charsmaps().
  explicit SentencepieceNormalizer(const SentencepieceModel& model);

  /// Returns `text`, which is UTF-8, in the form that is segmented into pieces, with spaces for U+2581. The result is
  /// `text` itself if nothing changes, otherwise it is stored in `buffer`.
  std::string_view apply(std::string_view text, const TextPart& part, std::string& buffer) const;

 private:
  std::pair<std::string_view, std::size_t> next_replacement(std::string_view text) const;
  bool ends_in_space(std::string_view text) const;
  void append(std::string_view text, bool is_after_space, std::string& out) const;
  std::size_t kept_size(std::string_view text) const;

  Charsmap charsmap_;
  ByteTrie symbols_;  // user-defined symbols, which no rule changes
  bool adds_prefix_, adds_suffix_, merges_spaces_;
  std::array<bool, 256> is_kept_{};  // ASCII characters that no rule changes unless a non-ASCII one follows
};

}  // namespace mcpp
