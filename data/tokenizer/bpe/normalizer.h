// What is done to a text before it is cut into words.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/bpe/bpe_description.h"
#include "data/tokenizer/bpe/regex.h"

namespace mcpp {

/// Its const methods may be called by several threads at once.
class Normalizer {
 public:
  /// BadInput, naming `source`, for a pattern that is none.
  Normalizer(const std::vector<NormalizerStep>& steps, const std::string& source);

  bool is_empty() const { return steps_.empty(); }

  /// `text` after all steps: itself where they change nothing, else in `buffer`. Nothing is put before a text that is
  /// continued. Throws BadInput if a text grows without measure.
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
