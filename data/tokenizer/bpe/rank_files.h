// Byte-level vocabularies in files without rules: GPT-2's vocab.json with merges.txt, and tiktoken's rank lists, such
// as cl100k_base.tiktoken and the tokenizer.model of Llama 3.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

/// Parses a vocabulary. The default rules come from the known vocabulary of this size, or else from GPT-2. Throws
/// BadInput, naming `source`, for damaged files.
BpeDescription parse_vocab_and_merges(std::string_view vocab, std::string_view merges, const std::string& source,
                                      std::optional<PreTokenization> rules = {});

/// Returns true if `text` begins like a rank list: bytes in base64, a space, a number.
bool looks_like_ranks(std::string_view text);

/// Parses a rank list; the ranks are the ids. The size of the list determines a known vocabulary, whose rules and
/// special tokens are used. For other sizes `rules` must be set, and the special token <|endoftext|> is added. Throws
/// BadInput, naming `source`, for malformed lines, duplicate or missing ids, and an unknown size without `rules`.
BpeDescription parse_ranks(std::string_view text, const std::string& source, std::optional<PreTokenization> rules = {});

}  // namespace mcpp
