// Special tokens that the files of an imported model define, as stored in checkpoints.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

/// Tokens at the beginning and end of texts. If the model defines none, the special tokens of its tokenizer apply.
struct SpecialTokens {
  std::optional<i64> bos = {};  ///< the tokenizer's bos_token
  std::optional<i64> eos = {};  ///< the tokenizer's eos_token
  std::vector<i64> stop = {};   ///< each ends a generated text; empty = eos or the tokenizer's end of document
  bool adds_bos = false;        ///< the tokenizer adds bos before every text
  /// JSON objects by file name with the members that an export writes back, and the text of chat_template.jinja
  std::map<std::string, std::string> files = {};

  /// Returns the token before the first token of a text: bos, or else the token that ends the preceding text.
  i32 text_begin(const Tokenizer& tokenizer) const { return bos ? static_cast<i32>(*bos) : text_end(tokenizer); }
  /// Returns the token after the last token of a text.
  i32 text_end(const Tokenizer& tokenizer) const { return eos ? static_cast<i32>(*eos) : tokenizer.eod(); }
  /// Returns the tokens that end a generated text.
  std::vector<i32> stop_tokens(const Tokenizer& tokenizer) const;
  /// Adds bos before `tokens` if the tokenizer does so and `tokens` does not begin with it yet.
  void add_bos(std::vector<i32>& tokens) const;
  /// Returns true if the model defines its own special tokens.
  bool is_stated() const { return !files.empty(); }

  bool operator==(const SpecialTokens&) const = default;
};

/// Stores `tokens` in a checkpoint's state; no-op if the model defines none.
void store_special_tokens(const SpecialTokens& tokens, RunState& run);
/// Returns the tokens stored by store_special_tokens(), or none if `run` has none. Throws BadInput, naming `source`, if
/// they are damaged.
SpecialTokens read_special_tokens(const RunState& run, const std::string& source);

}  // namespace mcpp
