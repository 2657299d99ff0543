// Normalization of texts before they are split into words.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/bpe/bpe_description.h"
#include "data/tokenizer/bpe/regex.h"

namespace mcpp {

/// Sequence of normalization steps. Const methods are thread-safe.
class Normalizer {
 public:
  /// Throws BadInput, naming `source`, for an invalid pattern.
  Normalizer(const std::vector<NormalizerStep>& steps, const std::string& source);

  bool is_empty() const { return steps_.empty(); }

  /// Returns `text` after all steps: `text` itself if nothing changes, else stored in `buffer`. Adds no prefix to a
  /// continued text. Throws BadInput if the result is more than about 64 times as long.
  std::string_view apply(std::string_view text, SegmentStart start, std::string& buffer, RegexMemory& memory) const;

 private:
  struct Replace {
    Regex pattern;
    std::string content;
  };
  void check_growth(std::size_t size, std::size_t original_size) const;

  std::string source_;
  std::vector<std::variant<UnicodeForm, PrependStep, Replace>> steps_;
};

}  // namespace mcpp
