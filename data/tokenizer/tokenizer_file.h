// Tokenizer files. Their kind is determined by content, regardless of their names.
#pragma once
#include <memory>

#include "base/file.h"
#include "data/tokenizer/bpe/known_rules.h"
#include "data/tokenizer/text_coder.h"

namespace mcpp {

/// sentencepiece model, `tokenizers`' tokenizer.json, or tiktoken's list of ranks.
enum class TokenizerKind { Sentencepiece, TokenizerJson, Ranks };
TokenizerKind tokenizer_kind(std::string_view content);

/// Returns the tokenizer in `path` as one file: its content, or a tokenizer.json that combines several files
/// (vocab.json and merges.txt, or a model and the tokens that tokenizer_config.json or added_tokens.json next to it
/// add). Checkpoints store this content, and the checksum refers to it. Throws BadInput if there is no such file.
std::string read_tokenizer_file(const Path& path);

/// Returns a coder for the result of read_tokenizer_file(). Throws BadInput, naming `source`, if it is not a tokenizer.
std::unique_ptr<TextCoder> make_text_coder(const std::string& content, const std::string& source);

/// Returns the tokenizer file in a model folder in the layout of the Hugging Face Hub: tokenizer.model, tokenizer.json,
/// or vocab.json with merges.txt; "" if there is none. Of the first two, the one with more pieces is chosen, since it
/// has the tokens that were added to the model later.
Path find_tokenizer_file(const Path& folder);

/// Converts a byte-level tokenizer that is not a sentencepiece model to a tokenizer.json. `rules` state how words are
/// split if the file does not. Throws BadInput for other kinds.
std::string convert_to_tokenizer_json(const Path& path, std::optional<PreTokenization> rules);

}  // namespace mcpp
