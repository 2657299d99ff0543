// Byte pair encoding as described by files of the Hugging Face Hub and of tiktoken.
#pragma once
#include <memory>

#include "data/tokenizer/bpe/bpe_description.h"
#include "data/tokenizer/text_coder.h"

namespace mcpp {

/// Returns a coder that produces the ids of `tokenizers` without adding special tokens at the beginning or end. Added
/// and special tokens are recognized in any text, including untrusted text. Throws BadInput, naming `source`, for a
/// description that cannot encode every text.
std::unique_ptr<TextCoder> make_bpe_coder(BpeDescription description, const std::string& source);

}  // namespace mcpp
