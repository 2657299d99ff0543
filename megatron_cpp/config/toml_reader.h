// Conversion of TOML text to settings, by toml++.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "megatron_cpp/config/settings.h"

namespace mcpp {

/// Passes the keys of all sections of `toml` to `reader`, in the order of the text, with "name:line:column" as
/// location. Text that is not TOML, or sets a key twice, is reported as a single problem, since the text after it
/// cannot be parsed reliably.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& reader);

/// Returns the reader for the content of a table that is read like a separate file, or null if the table is an ordinary
/// section.
using TableReader = std::function<SettingsReader*(std::string_view table)>;
/// Overload for text that embeds other texts, each in a separate table. Keys outside of these tables are passed to
/// `rest`.
void read_toml(std::string_view toml, const std::string& name, SettingsReader& rest, const TableReader& table_reader);

}  // namespace mcpp
