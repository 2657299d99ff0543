// Conversion of TOML text to settings, by toml++.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "megatron_cpp/config/settings.h"

namespace mcpp {

/// Passes the keys of all sections of `toml` to `reader`, in the order of the text, with "name:line:column" as
/// location. Text that is not TOML, or sets a key twice, is reported as a single problem, since nothing after it can be
/// trusted.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& reader);

/// Returns the reader for the content of the table of that name, as if it were a file of its own, or null if the table
/// is an ordinary section.
using TableReader = std::function<SettingsReader*(std::string_view table)>;
/// Overload for text that embeds other texts, each in a table of its own. Keys outside of these tables are passed to
/// `rest`.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& rest, const TableReader& table_reader);

}  // namespace mcpp
