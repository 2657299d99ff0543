// TOML text as settings, by toml++.
#pragma once
#include <string>
#include <string_view>

#include "megatron_cpp/config/settings.h"

namespace mcpp {

/// Hands the keys of all sections of `toml` to `reader`, in the order of the text, with "name:line:column" as place.
/// Text that is no TOML, or gives a key twice, is one problem: nothing after it can be trusted.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& reader);

}  // namespace mcpp
