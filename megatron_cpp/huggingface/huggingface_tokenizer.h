// A tokenizer as transformers reads it, so that its ids are ours for every text.
#pragma once
#include <string>

#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/huggingface/huggingface_config.h"

namespace mcpp {

/// A tokenizer as the files of a Hugging Face folder. BadInput for a model that they cannot express.
class HuggingfaceTokenizer {
 public:
  explicit HuggingfaceTokenizer(const Path& model);

  /// Writes tokenizer.json, which transformers 4.45 and later encodes by and which is the file itself where it was one,
  /// tokenizer_config.json, and for others a sentencepiece model itself as tokenizer.model. `longest` is the most
  /// tokens that the model takes. What `tokens` states is written as it was stated.
  void write(const Path& folder, i64 longest, const SpecialTokens& tokens) const;
  /// Documents end with eos; they begin with bos where the tokenizer has such a piece, else after the eos of another.
  SpecialTokens special_tokens() const;

 private:
  void read_sentencepiece(const SentencepieceModel& model, const std::string& source);

  std::string token_name(std::optional<i64> id) const;

  Tokenizer tokenizer_;
  std::string file_;
  TokenizerKind kind_;
  std::string json_;
  SpecialTokens tokens_;
  std::string unknown_;  // "" when there is no such piece
  bool adds_prefix_space_ = false;
};

/// tokenizer.json: pieces spelled with plain spaces, as the text has them, so that a U+2581 of the text is a character
/// like any other. `source` is how messages call the model.
std::string tokenizer_json(const SentencepieceModel& model, const std::string& source);

}  // namespace mcpp
