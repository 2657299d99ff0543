// How other programs call our keys.
#pragma once
#include <string_view>

namespace mcpp {

/// Our key for a name of Hugging Face's (config.json, TrainingArguments), Megatron-LM's or nanoGPT's; empty when it is
/// none of theirs.
std::string_view own_name(std::string_view foreign);
/// What to know of a name of Megatron-LM's that needs no key here, as a sentence; empty when there is nothing.
std::string_view advice_on(std::string_view foreign);

}  // namespace mcpp
