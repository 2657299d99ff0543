// Reader and writer of tokenizer.json of `tokenizers`, for byte pair encoding.
#pragma once
#include <string>
#include <string_view>

#include "base/json.h"
#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

/// Parses `text` as a tokenizer.json. Throws BadInput, naming `source` and the reason, if it is damaged, contradictory
/// or unsupported, such as a model other than BPE.
BpeDescription parse_tokenizer_json(std::string_view text, const std::string& source);

/// Returns the member "added_tokens" of such a file.
OrderedJson added_tokens_json(const std::vector<AddedToken>& tokens);

/// Returns the number of ids of such a file with any model. Throws BadInput if it is not JSON or has no model.
i64 count_tokens(std::string_view text, const std::string& source);

}  // namespace mcpp
