// Tokenization with sentencepiece models, including those of other programs.
#pragma once
#include <memory>

#include "data/tokenizer/text_coder.h"

namespace mcpp {

/// Returns a coder for `content`, a sentencepiece model. Throws BadInput, naming `source`, if it is not one.
std::unique_ptr<TextCoder> make_sentencepiece_coder(const std::string& content, const std::string& source);

}  // namespace mcpp
