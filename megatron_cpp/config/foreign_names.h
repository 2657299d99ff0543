// Names of keys in other programs and in earlier versions of this one.
#pragma once
#include <string_view>

namespace mcpp {

/// Returns our key for a name used by Hugging Face (config.json, TrainingArguments), Megatron-LM, nanoGPT or an earlier
/// version of this program; empty if the name is unknown.
std::string_view find_native_key(std::string_view foreign);

/// Returns the current name of a key ("checkpoint.keep_last") or option ("other_numbers") that was renamed; empty if it
/// was not. Former names are accepted.
std::string_view renamed_key(std::string_view former);

/// Returns advice on a value that another program allows for a key that is called the same here
/// ("parallel.zero_stage"); empty if there is none.
std::string_view find_value_advice(std::string_view key, std::string_view value);

/// Returns advice on a Megatron-LM name that has no counterpart in this program; empty if there is none.
std::string_view find_advice(std::string_view foreign);

}  // namespace mcpp
