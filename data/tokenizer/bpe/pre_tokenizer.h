// Splitting of texts into words, which pieces never span.
#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/bpe/bpe_description.h"
#include "data/tokenizer/bpe/regex.h"

namespace mcpp {

/// Consumer of the words that PreTokenizer::split() produces.
class WordSink {
 public:
  virtual ~WordSink() = default;
  virtual void add_word(
      std::string_view word) = 0;  ///< called with a non-empty word, which is valid during the call only
};

/// Sequence of splitting steps. Const methods are thread-safe.
class PreTokenizer {
 public:
  /// Throws BadInput, naming `source`, for an invalid pattern.
  PreTokenizer(const std::vector<PreTokenizerStep>& steps, const std::string& source);

  /// Passes the words of `text` to `sink`, in order.
  void split(std::string_view text, SegmentStart start, RegexMemory& memory, WordSink& sink) const;

 private:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  /// Arguments shared by all parts of a text.
  struct Call {
    RegexMemory& memory;
    WordSink& sink;
  };
  void apply(std::size_t step, std::string_view part, SegmentStart start, const Call& call) const;
  void isolate(std::size_t step, std::string_view part, SegmentStart start, const Call& call) const;
  void split_otherwise(std::size_t step, std::string_view part, SegmentStart start, const Call& call) const;

  std::vector<std::variant<Split, PrefixStep, MarkStep>> steps_;
};

}  // namespace mcpp
