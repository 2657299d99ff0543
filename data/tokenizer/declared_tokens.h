// Tokens that files beside a tokenizer add to it, as transformers reads them where there is no tokenizer.json.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/tokenizer/bpe/bpe_description.h"
#include "data/tokenizer/sentencepiece_model.h"

namespace mcpp {

/// Statements of tokenizer_config.json and added_tokens.json about a tokenizer.
struct DeclaredTokens {
  std::vector<AddedToken> added;  ///< by id
  std::string source;             ///< file that declares them
  std::string model_type;         ///< of config.json; "" = none is stated
  std::string tokenizer_class;    ///< without "Fast"; "" = none is stated
  std::optional<bool> is_legacy;  ///< whether each part between added tokens begins as a text does
  bool adds_prefix_space = true;
};

/// Returns the statements of a folder: added_tokens_decoder, or without it added_tokens.json. Nothing when neither file
/// is there. BadInput, naming file and key, for members of another type.
DeclaredTokens read_declared_tokens(const Path& folder);

/// Adds `declared` to a byte-level description. BadInput for ids that two tokens have, and for ids that transformers
/// would number otherwise.
void add_declared_tokens(const DeclaredTokens& declared, const std::string& source, BpeDescription& description);

/// Returns a tokenizer.json that gives the ids which transformers gives for a sentencepiece model with these tokens;
/// nothing when the model has all of them itself. BadInput, with the reason, for tokens that cannot be represented.
std::optional<std::string> with_declared_tokens(const SentencepieceModel& model, const DeclaredTokens& declared,
                                                const std::string& source);

}  // namespace mcpp
