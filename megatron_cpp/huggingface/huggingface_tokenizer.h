// Export of tokenizers to transformers. The exported tokenizer produces identical token ids for every text.
#pragma once
#include <string>

#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/huggingface/huggingface_config.h"

namespace mcpp {

/// Writer of a tokenizer's Hugging Face files. The constructor throws BadInput for a tokenizer that these files cannot
/// express.
class HuggingfaceTokenizer {
 public:
  explicit HuggingfaceTokenizer(const Path& model);

  /// Writes three files:
  /// - tokenizer.json, for transformers 4.45 and later; a copy if the tokenizer is such a file;
  /// - tokenizer_config.json, with `longest`, the maximum number of tokens of the model;
  /// - tokenizer.model, for earlier versions; only for a sentencepiece model.
  /// Special tokens stated in `tokens` are written as stated.
  void write(const Path& folder, i64 longest, const SpecialTokens& tokens) const;
  /// Returns the special tokens of documents. A document ends with eos. It begins with bos if the tokenizer has such a
  /// piece, otherwise with the eos of the previous document.
  SpecialTokens special_tokens() const;

 private:
  void read_sentencepiece(const SentencepieceModel& model, const std::string& source);

  std::string token_name(std::optional<i64> id) const;

  Tokenizer tokenizer_;
  std::string file_;
  TokenizerKind kind_;
  std::string json_;
  SpecialTokens tokens_;
  std::string unknown_;  // "" if the tokenizer has no unknown piece
  bool adds_prefix_space_ = false;
};

/// Returns the contents of tokenizer.json. Pieces are spelled with plain spaces instead of U+2581, so that a U+2581 in
/// a text is an ordinary character. `source` names the model in messages.
std::string tokenizer_json(const SentencepieceModel& model, const std::string& source);

}  // namespace mcpp
