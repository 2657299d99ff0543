// Byte pair encoding as the files of the Hugging Face Hub and of tiktoken describe it.
#pragma once
#include <memory>

#include "data/tokenizer/bpe/bpe_description.h"
#include "data/tokenizer/text_coder.h"

namespace mcpp {

/// Gives the ids that `tokenizers` gives without special tokens around them. Added and special tokens are found in the
/// text, whoever wrote it. BadInput, naming `source`, for a description that cannot spell every text.
std::unique_ptr<TextCoder> make_bpe_coder(BpeDescription description, const std::string& source);

}  // namespace mcpp
