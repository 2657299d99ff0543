// Sentencepiece models, ours and others.
#pragma once
#include <memory>

#include "data/tokenizer/text_coder.h"

namespace mcpp {

/// `content` is a sentencepiece model. BadInput, naming `source`, when it is none.
std::unique_ptr<TextCoder> make_sentencepiece_coder(const std::string& content, const std::string& source);

}  // namespace mcpp
