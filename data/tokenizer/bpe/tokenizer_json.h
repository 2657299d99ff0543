// tokenizer.json of `tokenizers`, as far as byte pair encoding goes.
#pragma once
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "data/tokenizer/bpe/bpe_description.h"

namespace mcpp {

/// `text` as a tokenizer.json. BadInput, naming `source` and what it is, for one that is damaged, contradicts itself,
/// or asks for what is not there, such as a model that is not BPE.
BpeDescription parse_tokenizer_json(std::string_view text, const std::string& source);

/// Returns the member "added_tokens" of such a file.
OrderedJson added_tokens_json(const std::vector<AddedToken>& tokens);

/// How many ids such a file gives out, whatever its model is. BadInput when it is no JSON or has no model.
i64 count_tokens(std::string_view text, const std::string& source);

}  // namespace mcpp
