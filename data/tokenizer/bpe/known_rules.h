// Pre-tokenization of known byte-level tokenizers, for files that do not state it.
#pragma once
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

enum class PreTokenization { Gpt2, Llama3, Qwen2, Cl100k, O200k };
template <>
struct EnumNames<PreTokenization> {
  static constexpr std::array<std::string_view, 5> value{"gpt2", "llama3", "qwen2", "cl100k", "o200k"};
};

/// Returns the regular expression whose matches are the words.
std::string_view word_pattern(PreTokenization kind);

/// Sets how texts are normalized and split.
void set_rules(BpeDescription& description, PreTokenization kind);

/// Published vocabulary whose files state neither rules nor special tokens.
struct KnownVocabulary {
  std::string_view name;
  i64 pieces;  ///< without special tokens
  PreTokenization rules;
  std::vector<std::pair<i32, std::string>> special;
};

/// Returns the vocabulary with this number of pieces, or nullptr.
const KnownVocabulary* known_vocabulary(i64 pieces);
/// Returns "50256 (GPT-2), 100256 (cl100k), ...".
std::string known_vocabularies();

}  // namespace mcpp
