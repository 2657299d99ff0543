// How other programs call our keys.
#pragma once
#include <string_view>

namespace mcpp {

/// Our key for a name of Hugging Face's (config.json, TrainingArguments) or nanoGPT's; empty when it is neither's.
std::string_view own_name(std::string_view foreign);

}  // namespace mcpp
