#include "megatron_cpp/config/hardware_file.h"

#include <algorithm>
#include <set>

#include "base/strings.h"
#include "megatron_cpp/config/toml_reader.h"

namespace mcpp {
namespace {

std::vector<Field> hardware_fields(Hardware& hardware) {
  std::vector<Field> fields;
  Hardware::sections(hardware, [&](std::string_view name, auto& section) { list_fields(section, name, fields); });
  return fields;
}

/// What has a value that fits every device, and what only a calibration measures.
bool is_optional(const std::string& key) {
  if (key.starts_with("measured_")) return true;
  static const std::set<std::string> kOptional{"device.fp8_peak",      "device.fp8_attained", "device.tile_rows",
                                               "device.tile_columns",  "host.nvme_bandwidth", "host.cores",
                                               "host.memory_bandwidth"};
  return kOptional.contains(key);
}

std::vector<std::string> names_in(const Path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".toml") names.push_back(entry.path().stem());
  std::ranges::sort(names);
  return names;
}

}  // namespace

Hardware parse_hardware(std::string_view toml, const std::string& name) {
  Hardware hardware;
  SettingsReader reader(hardware_fields(hardware));
  read_toml(toml, name, reader);
  if (reader.is_incomplete()) reader.finish();  // no TOML: nothing that is missing was left out
  for (const Field& field : reader.fields())
    if (!reader.was_set(field.key) && !is_optional(field.key) && !reader.is_doubtful(field.key))
      reader.add_gap(str(name, ": ", field.key, ": is missing: ", field.help));
  for (const std::string& text : hardware.conflicts()) reader.add_conflict(text, name);
  reader.finish();
  return hardware;
}

Hardware load_hardware(const std::string& name, const Path& folder) {
  if (name.ends_with(".toml")) return parse_hardware(read_text_file(name), name);
  const std::vector<std::string> names = names_in(folder);
  if (std::ranges::find(names, name) == names.end()) {
    const std::string nearest = nearest_name(name, names);
    fail(ExitCode::BadInput, "unknown hardware \"", name, "\"; ",
         !nearest.empty() ? str("did you mean ", nearest, "?")
         : names.empty()  ? str("there are no files in ", folder.string(), "; give one, or its folder")
                          : str("there are: ", join(names, ", "), " in ", folder.string(),
                                "; or give a file, a copy of one of them with other values"));
  }
  const Path file = folder / (name + ".toml");
  return parse_hardware(read_text_file(file), file.string());
}

std::string print_hardware(const Hardware& hardware) {
  Hardware copy = hardware;
  std::string text;
  std::string_view section;
  const std::vector<Field> fields = hardware_fields(copy);
  const auto is_left_out = [&](std::string_view name) {
    return (name == "measured_bf16" && !hardware.measured_bf16.has()) ||
           (name == "measured_fp32" && !hardware.measured_fp32.has());
  };
  for (const Field& field : fields) {
    if (is_left_out(field.section())) continue;
    if (field.section() != section) text += str(text.empty() ? "" : "\n", "[", section = field.section(), "]\n");
    text += str(field.name(), " = ", field.print(), "\n");
  }
  return text;
}

}  // namespace mcpp
