// Special tokens as the files of a Hugging Face folder state them: config.json, generation_config.json,
// tokenizer_config.json, special_tokens_map.json and chat_template.jinja.
#pragma once
#include "base/json/json.h"
#include "megatron_cpp/resume/special_tokens.h"

namespace mcpp {

/// Reads the statements of a folder as transformers does. `tokenizer` gives names their ids and may be null; ids
/// outside of `vocab_size` are kept for an export and used nowhere. BadInput, naming file and key, for values of
/// another type.
SpecialTokens read_stated_tokens(const Path& folder, const Tokenizer* tokenizer, i64 vocab_size);

/// Members of config.json and of tokenizer_config.json that an export writes back; empty when none are stated.
OrderedJson stated_members(const SpecialTokens& tokens, const char* file);

}  // namespace mcpp
