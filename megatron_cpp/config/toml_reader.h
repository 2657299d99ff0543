// TOML text as settings, by toml++.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "megatron_cpp/config/settings.h"

namespace mcpp {

/// Hands the keys of all sections of `toml` to `reader`, in the order of the text, with "name:line:column" as place.
/// Text that is no TOML, or gives a key twice, is one problem: nothing after it can be trusted.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& reader);

/// The reader of what stands in the table of that name, as if it stood alone; null = the table is no such text.
using ReaderOfTable = std::function<SettingsReader*(std::string_view table)>;
/// The same of a text that holds others, each in a table of its own; what is in none of these is `rest`'s.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& rest, const ReaderOfTable& reader_of);

}  // namespace mcpp
