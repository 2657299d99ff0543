// Special tokens that an imported model states in files of its own, as its checkpoints keep them.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/run_state.h"
#include "data/tokenizer/tokenizer.h"

namespace mcpp {

/// Tokens at the beginning and the end of texts. Without statements of a model they are those of its tokenizer.
struct SpecialTokens {
  std::optional<i64> bos = {};  ///< the tokenizer's bos_token
  std::optional<i64> eos = {};  ///< the tokenizer's eos_token
  std::vector<i64> stop = {};   ///< each ends a generated text; empty = eos or the tokenizer's end of document
  bool adds_bos = false;        ///< the tokenizer puts bos before every text
  /// JSON objects by file name with the members that an export writes back, and the text of chat_template.jinja.
  std::map<std::string, std::string> files = {};

  /// Token before the first token of a text: bos, or else what ends the text before it.
  i32 text_begin(const Tokenizer& tokenizer) const { return bos ? static_cast<i32>(*bos) : text_end(tokenizer); }
  /// Token after the last token of a text.
  i32 text_end(const Tokenizer& tokenizer) const { return eos ? static_cast<i32>(*eos) : tokenizer.eod(); }
  /// Tokens that end a generated text.
  std::vector<i32> stop_tokens(const Tokenizer& tokenizer) const;
  /// Puts bos before `tokens` where the tokenizer does so, unless it is there already.
  void add_bos(std::vector<i32>& tokens) const;
  /// Whether the model has statements of its own.
  bool is_stated() const { return !files.empty(); }

  bool operator==(const SpecialTokens&) const = default;
};

/// Saves `tokens` in a checkpoint's state; nothing when there are no statements.
void note_special_tokens(const SpecialTokens& tokens, RunState& run);
/// Returns those of note_special_tokens(); without statements where `run` has none. BadInput, naming `source`, when
/// they are damaged.
SpecialTokens special_tokens_of(const RunState& run, const std::string& source);

}  // namespace mcpp
