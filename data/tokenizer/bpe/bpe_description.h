// Content of a byte pair encoding tokenizer, independent of the file format: tokenizer.json of `tokenizers`, GPT-2's
// vocab.json with merges.txt, or tiktoken's rank list.
#pragma once
#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/fields.h"
#include "base/types.h"

namespace mcpp {

/// Token that is searched in the text before any other step. The flags have the same meaning as in `tokenizers`.
struct AddedToken {
  i32 id = 0;
  std::string content;
  bool single_word = false;       ///< not inside a word
  bool lstrip = false;            ///< absorbs the white space before it
  bool rstrip = false;            ///< absorbs the white space after it
  bool normalized = false;        ///< searched in the normalized text
  bool special = true;            ///< decodes to nothing
  bool is_in_vocabulary = false;  ///< also a piece of the model, so merges may also produce it
};

/// Merge of a pair of pieces. Merges of the lowest rank come first, and of these the leftmost.
struct Merge {
  u32 left = 0, right = 0;  ///< ids
  u32 rank = 0;
  u32 result = 0;  ///< id
};

// Steps of normalizers, in order.
enum class UnicodeForm { Nfc, Nfd, Nfkc, Nfkd };
struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  std::string pattern;  ///< a regular expression
  std::string content;
};
using NormalizerStep = std::variant<UnicodeForm, PrependStep, ReplaceStep>;

/// Treatment of the matches of a pattern that texts are split by, as named in `tokenizers`.
enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };
struct SplitStep {
  std::string pattern;  ///< a regular expression
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool invert = false;  ///< treat text between matches as matches
};
/// Prepends `text` unless the input begins with it.
struct PrefixStep {
  std::string text;
  bool is_at_text_begin_only = false;
};
/// Replaces every `from` by `content`.
struct MarkStep {
  std::string from, content;
};
using PreTokenizerStep = std::variant<SplitStep, PrefixStep, MarkStep>;

/// Position in the document at which the input of a normalization or splitting step begins.
enum class SegmentStart {
  Document,   ///< the beginning of a document
  Split,      ///< a position where an earlier step has split the document
  Continued,  ///< a position where the document was divided to be encoded in parts
};

struct BpeDescription {
  std::vector<std::string> pieces;  ///< pieces by id, as written in the file; empty for an unused id
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  bool is_byte_level = false;      ///< pieces encode bytes, as byte_characters() does; else characters
  bool ignore_merges = false;      ///< a word that is a piece is encoded as that piece
  bool byte_fallback = false;      ///< characters that are not pieces become byte pieces <0xE2>
  bool fuse_unknown = false;       ///< consecutive unknown characters are one token
  std::optional<i32> unknown;      ///< token for text that cannot be encoded
  std::string space_mark;          ///< spelling of a space in pieces that are not byte-level; empty = a space
  bool drops_first_space = false;  ///< decoding removes the space that a normalizer adds before every text
  std::vector<i32> prefix_tokens;  ///< tokens that the file adds before a text for a model; encode() does not add them
  std::string rules;               ///< description of the pre-tokenization rules
};

/// Returns a tokenizer.json, which `tokenizers` and transformers read. The description must be byte-level, with rules
/// of set_rules().
std::string to_tokenizer_json(const BpeDescription& description);

// Pre-tokenization of known byte-level tokenizers, for files that do not specify it.

enum class PreTokenization { Gpt2, Llama3, Qwen2, Cl100k, O200k };
template <>
struct EnumNames<PreTokenization> {
  static constexpr std::array<std::string_view, 5> value{"gpt2", "llama3", "qwen2", "cl100k", "o200k"};
};

/// Returns the regular expression whose matches are the words.
std::string_view word_pattern(PreTokenization kind);

/// Sets how texts are normalized and split.
void set_rules(BpeDescription& description, PreTokenization kind);

/// Published vocabulary whose files specify neither rules nor special tokens.
struct KnownVocabulary {
  std::string_view name;
  i64 pieces;  ///< number of pieces without special tokens
  PreTokenization rules;
  std::vector<std::pair<i32, std::string>> special;
};

/// Returns the vocabulary with this number of pieces, or nullptr.
const KnownVocabulary* known_vocabulary(i64 pieces);
/// Returns "50256 (GPT-2), 100256 (cl100k), ...".
std::string known_vocabularies();

}  // namespace mcpp
