// Normalization of texts as sentencepiece does it.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "data/tokenizer/byte_trie.h"
#include "data/tokenizer/charsmap.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/text_part.h"

namespace mcpp {

/// Thread-safe. The library normalizes only as a step of encoding, and knows no parts of documents.
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
  void append(std::string_view text, bool after_space, std::string& out) const;
  std::size_t kept_size(std::string_view text) const;

  Charsmap charsmap_;
  ByteTrie symbols_;  // user-defined symbols, which no rule changes
  bool adds_prefix_, adds_suffix_, merges_spaces_;
  std::array<bool, 256> is_kept_{};  // ASCII characters that no rule changes unless another character follows
};

}  // namespace mcpp
