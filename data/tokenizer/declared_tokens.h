// Tokens that files next to a tokenizer add to it, as transformers reads them in the absence of a tokenizer.json.
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
  std::string model_type;         ///< of config.json; "" = not stated
  std::string tokenizer_class;    ///< without "Fast"; "" = not stated
  std::optional<bool> is_legacy;  ///< each part between added tokens begins as a text does
  bool adds_prefix_space = true;
};

/// Returns the statements of a folder: added_tokens_decoder, or without it added_tokens.json. Empty if neither file
/// exists. Throws BadInput, naming file and key, for members of a wrong type.
DeclaredTokens read_declared_tokens(const Path& folder);

/// Adds `declared` to a byte-level description. Throws BadInput for ids that two tokens have, and for ids that
/// transformers would number differently.
void add_declared_tokens(const DeclaredTokens& declared, const std::string& source, BpeDescription& description);

/// Returns a tokenizer.json with the ids that transformers assigns for a sentencepiece model with these tokens;
/// std::nullopt if the model itself has all of them. Throws BadInput, with the reason, for tokens that cannot be
/// represented.
std::optional<std::string> with_declared_tokens(const SentencepieceModel& model, const DeclaredTokens& declared,
                                                const std::string& source);

}  // namespace mcpp
