// Tokenizer files. The kind of a file is determined by its content, not by its name.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "data/tokenizer/bpe/bpe_description.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/text_coder.h"

namespace mcpp {

// Tokens that files next to a tokenizer add to it, as transformers reads them in the absence of a tokenizer.json.

/// Tokens and options that tokenizer_config.json and added_tokens.json declare for a tokenizer.
struct DeclaredTokens {
  std::vector<AddedToken> added;  ///< tokens, sorted by id
  std::string source;             ///< file that declares them
  std::string model_type;         ///< model type in config.json; "" = not stated
  std::string tokenizer_class;    ///< class name without "Fast"; "" = not stated
  std::optional<bool> is_legacy;  ///< true if each part after an added token is treated as the start of a text
  bool adds_prefix_space = true;
};

/// Returns the declarations of a folder: added_tokens_decoder, or without it added_tokens.json. Empty if neither file
/// exists. Throws BadInput, naming file and key, for members of a wrong type.
DeclaredTokens read_declared_tokens(const Path& folder);

/// Adds `declared` to a byte-level description. Throws BadInput if two tokens have the same id, or if transformers
/// would assign different ids.
void add_declared_tokens(const DeclaredTokens& declared, const std::string& source, BpeDescription& description);

/// Returns a tokenizer.json with the ids that transformers assigns for a sentencepiece model with these tokens;
/// std::nullopt if the model itself has all of them. Throws BadInput, with the reason, for tokens that cannot be
/// represented.
std::optional<std::string> with_declared_tokens(const SentencepieceModel& model, const DeclaredTokens& declared,
                                                const std::string& source);

/// Format of a tokenizer file. Ranks is tiktoken's.
enum class TokenizerKind { Sentencepiece, TokenizerJson, Ranks };
TokenizerKind tokenizer_kind(std::string_view content);

/// Returns the tokenizer in `path` as one file: its content, or a tokenizer.json that combines several files
/// (vocab.json and merges.txt, or a model and the tokens that tokenizer_config.json or added_tokens.json next to it
/// add). Checkpoints store this content, and the checksum refers to it. Throws BadInput if there is no such file.
std::string read_tokenizer_file(const Path& path);

/// Returns a coder for the result of read_tokenizer_file(). Throws BadInput, naming `source`, if it is not a tokenizer.
std::unique_ptr<TextCoder> make_text_coder(const std::string& content, const std::string& source);

/// Returns the tokenizer file in a model folder in the layout of the Hugging Face Hub: tokenizer.model, tokenizer.json,
/// or vocab.json with merges.txt; "" if there is none. If both tokenizer.model and tokenizer.json exist, returns the
/// file with more pieces, because it includes tokens that were added to the model later.
Path find_tokenizer_file(const Path& folder);

/// Converts a byte-level tokenizer that is not a sentencepiece model to a tokenizer.json. `rules` specifies how words
/// are split, for files that do not specify it. Throws BadInput for other kinds.
std::string convert_to_tokenizer_json(const Path& path, std::optional<PreTokenization> rules);

}  // namespace mcpp
