// Export of tokenizers to transformers, with identical token ids for every text.
#pragma once
#include <string>

#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_file.h"
#include "megatron_cpp/huggingface/huggingface_config.h"

namespace mcpp {

/// Tokenizer as the files of a Hugging Face folder. Throws BadInput for a tokenizer that these files cannot express.
class HuggingfaceTokenizer {
 public:
  explicit HuggingfaceTokenizer(const Path& model);

  /// Writes tokenizer.json, which transformers 4.45 and later uses (a copy if the tokenizer was such a file),
  /// tokenizer_config.json and, for a sentencepiece model, tokenizer.model for earlier versions. `longest` is the
  /// model's maximum number of tokens. Special tokens stated in `tokens` are written as stated.
  void write(const Path& folder, i64 longest, const SpecialTokens& tokens) const;
  /// Returns the special tokens: documents end with eos, and begin with bos if the tokenizer has such a piece, else
  /// after the eos of the previous document.
  SpecialTokens special_tokens() const;

 private:
  void read_sentencepiece(const SentencepieceModel& model, const std::string& source);

  std::string token_name(std::optional<i64> id) const;

  Tokenizer tokenizer_;
  std::string file_;
  TokenizerKind kind_;
  std::string json_;
  SpecialTokens tokens_;
  std::string unknown_;  // "" if there is no such piece
  bool adds_prefix_space_ = false;
};

/// Returns tokenizer.json. Pieces are spelled with plain spaces, as in text, so that a U+2581 in text is an ordinary
/// character. `source` is the name of the model in messages.
std::string tokenizer_json(const SentencepieceModel& model, const std::string& source);

}  // namespace mcpp
