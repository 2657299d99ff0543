// What a tokenizer file of byte pair encoding says, whichever of the formats it has: `tokenizers`' tokenizer.json,
// GPT-2's vocab.json with merges.txt, tiktoken's list of ranks.
#pragma once
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/types.h"

namespace mcpp {

/// A token that is looked for in the text before all else. The flags are those of `tokenizers`.
struct AddedToken {
  i32 id = 0;
  std::string content;
  bool single_word = false;    ///< not inside a word
  bool lstrip = false;         ///< takes the white space before it along
  bool rstrip = false;         ///< and after it
  bool normalized = false;     ///< looked for in the normalised text
  bool special = true;         ///< decodes to nothing
  bool in_vocabulary = false;  ///< the model knows it too: text may become it in other ways
};

/// Pairs of pieces become one, those of the lowest rank first, the leftmost of these first.
struct Merge {
  u32 left = 0, right = 0;  ///< ids
  u32 rank = 0;
  u32 result = 0;  ///< id
};

// Steps of normalisers, in order.
enum class UnicodeForm { Nfc, Nfd, Nfkc, Nfkd };
struct PrependStep {
  std::string text;
};
struct ReplaceStep {
  std::string pattern;  ///< a regular expression
  std::string content;
};
using NormalizerStep = std::variant<UnicodeForm, PrependStep, ReplaceStep>;

/// What becomes of the matches of a pattern that texts are split by, as `tokenizers` calls it.
enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };
struct SplitStep {
  std::string pattern;  ///< a regular expression
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool invert = false;  ///< what lies between matches counts as match
};
/// Puts `text` before what does not begin with it.
struct PrefixStep {
  std::string text;
  bool at_text_begin_only = false;
};
/// Writes `content` for every `from`.
struct MarkStep {
  std::string from, content;
};
using PreTokenizerStep = std::variant<SplitStep, PrefixStep, MarkStep>;

/// What the beginning of a text that a step is applied to is.
enum class SegmentStart {
  Document,   ///< the beginning of a document
  Split,      ///< a place where an earlier step has split the document
  Continued,  ///< a place where the document was divided to be encoded in parts
};

struct BpeDescription {
  std::vector<std::string> pieces;  ///< by id, as the file spells them; empty where there is none
  std::vector<Merge> merges;
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  bool is_byte_level = false;      ///< pieces spell bytes, as byte_characters() does; else characters
  bool ignore_merges = false;      ///< a word that is a piece is that piece
  bool byte_fallback = false;      ///< characters that are no pieces are spelled <0xE2>
  bool fuse_unknown = false;       ///< several unknown characters in a row are one
  std::optional<i32> unknown;      ///< for what cannot be spelled
  std::string space_mark;          ///< how pieces that are no bytes spell a space; empty = as it is
  bool drops_first_space = false;  ///< decoding takes back the space that a normaliser puts before every text
  std::vector<i32>
      prefix_tokens;  ///< what the file puts before a text that is to be read by a model; encode() does not
  std::string rules;  ///< of pre-tokenization, in words
};

/// As a tokenizer.json, which `tokenizers` and transformers read. The description is byte-level, with rules of
/// set_rules().
std::string to_tokenizer_json(const BpeDescription& description);

}  // namespace mcpp
