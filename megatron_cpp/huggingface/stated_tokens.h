// Special tokens stated by the files of a Hugging Face folder: config.json, generation_config.json,
// tokenizer_config.json, special_tokens_map.json and chat_template.jinja.
#pragma once
#include "base/json.h"
#include "megatron_cpp/resume/special_tokens.h"

namespace mcpp {

/// Reads the special tokens of a folder as transformers does. `tokenizer` maps names to ids and may be null; ids
/// outside of `vocab_size` are kept for an export and otherwise unused. Throws BadInput, naming file and key, for
/// values of a wrong type.
SpecialTokens read_stated_tokens(const Path& folder, const Tokenizer* tokenizer, i64 vocab_size);

/// Returns the members of config.json or tokenizer_config.json that an export writes back; empty if none are stated.
OrderedJson stated_members(const SpecialTokens& tokens, const char* file);

}  // namespace mcpp
