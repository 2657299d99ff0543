// The files that a tokenizer may come from. Which kind one is, its content says, whatever its name.
#pragma once
#include <memory>

#include "base/file.h"
#include "data/tokenizer/bpe/known_rules.h"
#include "data/tokenizer/text_coder.h"

namespace mcpp {

/// sentencepiece model, `tokenizers`' tokenizer.json, or tiktoken's list of ranks.
enum class TokenizerKind { Sentencepiece, TokenizerJson, Ranks };
TokenizerKind tokenizer_kind(std::string_view content);

/// The tokenizer in `path` as one file: its content, or a tokenizer.json made of several files: of vocab.json and
/// merges.txt, and of a model and the tokens that tokenizer_config.json or added_tokens.json beside it add to it. That
/// is what checkpoints keep, and what its checksum is of. BadInput when there is no such file.
std::string read_tokenizer_file(const Path& path);

/// `content` as read_tokenizer_file() gives it. BadInput, naming `source`, when it is no tokenizer.
std::unique_ptr<TextCoder> make_text_coder(const std::string& content, const std::string& source);

/// The file of the tokenizer in a folder of a model, as the Hugging Face Hub has them: tokenizer.model, tokenizer.json,
/// vocab.json beside merges.txt; "" when there is none. Of the first two that with more pieces, which has the tokens
/// that were added to the model later.
Path find_tokenizer_file(const Path& folder);

/// The same tokenizer as a tokenizer.json, for the kinds that are byte-level and no sentencepiece model. `rules` say
/// how words are cut where the file does not. BadInput for others.
std::string convert_to_tokenizer_json(const Path& path, std::optional<PreTokenization> rules);

}  // namespace mcpp
