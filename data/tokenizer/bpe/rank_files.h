// Byte-level vocabularies in files that say nothing of rules: GPT-2's vocab.json with merges.txt, and the lists of
// ranks of tiktoken, such as cl100k_base.tiktoken and the tokenizer.model of Llama 3.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "data/tokenizer/bpe/known_rules.h"

namespace mcpp {

/// Rules, where not given, are those of the vocabulary when it is a known one, else GPT-2's. BadInput, naming `source`,
/// for damaged files.
BpeDescription parse_vocab_and_merges(std::string_view vocab, std::string_view merges, const std::string& source,
                                      std::optional<PreTokenization> rules = {});

/// Whether `text` begins as a list of ranks does: bytes in base64, a space, a number.
bool looks_like_ranks(std::string_view text);

/// A list of ranks, which are the ids. Rules and special tokens are those of the known vocabulary of its size; for
/// another size `rules` must be given, and one special token, <|endoftext|>, is added. BadInput, naming `source`, for
/// lines that are none, ids twice or left out, and a size that is not known.
BpeDescription parse_ranks(std::string_view text, const std::string& source, std::optional<PreTokenization> rules = {});

}  // namespace mcpp
