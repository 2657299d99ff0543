#include "megatron_cpp/config/hardware_file.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/strings.h"
#include "megatron_cpp/config/settings.h"

namespace mcpp {
namespace {

std::vector<Field> hardware_fields(Hardware& hardware) {
  std::vector<Field> fields;
  Hardware::sections(hardware, [&](std::string_view name, auto& section) { list_fields(section, name, fields); });
  return fields;
}

/// Returns true for keys that have a default suitable for every device, or that only a calibration measures.
bool is_optional(const std::string& key) {
  if (key.starts_with("measured_")) return true;
  static const std::set<std::string> kOptional{
      "device.fp8_peak",      "device.fp8_attained",   "device.blockwise_peak", "device.blockwise_attained",
      "device.mxfp8_peak",    "device.mxfp8_attained", "device.nvfp4_peak",     "device.nvfp4_attained",
      "device.tile_rows",     "device.tile_columns",   "host.nvme_bandwidth",   "host.cores",
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

constexpr std::string_view kTable = "ranks_";
constexpr const char* kCalibrateHint =
    "; to describe hosts without GPUs, such as this one, run `mpirun -n N megatron_cpp plan calibrate "
    "--out=here.toml` and use --hardware=here.toml";

/// Returns 2 for "ranks_2".
std::optional<i64> ranks_of_table(std::string_view table) {
  if (!table.starts_with(kTable)) return std::nullopt;
  const std::string_view digits = table.substr(kTable.size());
  if (digits.empty() || digits.front() < '1' || digits.front() > '9') return std::nullopt;
  const auto ranks = parse_number<i64>(digits);
  return ranks && static_cast<double>(*ranks) <= kMaxUnits ? ranks : std::nullopt;
}

/// Parser of the description for one number of ranks.
class Description {
 public:
  /// `table` is "ranks_2", or "" for any number of ranks.
  explicit Description(std::string table) : table_(std::move(table)), reader_(hardware_fields(hardware_)) {}
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  SettingsReader& reader() { return reader_; }
  const Hardware& hardware() const { return hardware_; }

  /// Reports missing keys and violated rules, after everything was read.
  void check(const std::string& name) {
    const std::string prefix = table_.empty() ? "" : table_ + ".";
    for (const Field& field : reader_.fields())
      if (!reader_.was_set(field.key) && !is_optional(field.key) && !reader_.is_doubtful(field.key))
        reader_.add_gap(str(name, ": ", prefix, field.key, ": is missing: ", field.help));
    std::vector<std::string> conflicts = hardware_.conflicts();
    if (const auto ranks = ranks_of_table(table_);
        ranks && !hardware_.links.ranks.empty() && reader_.was_set("links.ranks"))
      if (const i64 joined = hardware_.links.ranks.back(); joined < *ranks)
        conflicts.push_back(str("links.ranks: connect ", joined, ", but [", table_, "] describes ", *ranks, " ranks"));
    for (const std::string& text : conflicts) reader_.add_conflict(text, name);
  }

 private:
  std::string table_;
  Hardware hardware_;
  SettingsReader reader_;
};

/// `prefix` is prepended to each section's name.
std::string print_sections(const Hardware& hardware, const std::string& prefix) {
  Hardware copy = hardware;
  std::string text;
  std::string_view section;
  const std::vector<Field> fields = hardware_fields(copy);
  const auto is_omitted = [&](std::string_view name) {
    return (name == "measured_bf16" && !hardware.measured_bf16.has()) ||
           (name == "measured_fp32" && !hardware.measured_fp32.has());
  };
  for (const Field& field : fields) {
    if (is_omitted(field.section())) continue;
    if (field.section() != section)
      text += str(text.empty() ? "" : "\n", "[", prefix, section = field.section(), "]\n");
    text += str(field.name(), " = ", field.print(), "\n");
  }
  return text;
}

}  // namespace

const Hardware& HardwareKind::for_ranks(i64 ranks) const {
  if (!depends_on_ranks()) return by_ranks.at(kAnyRanks);
  const auto it = by_ranks.lower_bound(ranks);
  return it != by_ranks.end() ? it->second : by_ranks.rbegin()->second;
}

HardwareKind parse_hardware(std::string_view toml, const std::string& name) {
  Description any("");
  std::map<i64, Description> tables;
  read_toml(toml, name, any.reader(), [&](std::string_view table) -> SettingsReader* {
    const std::optional<i64> ranks = ranks_of_table(table);
    return ranks ? &tables.try_emplace(*ranks, std::string(table)).first->second.reader() : nullptr;
  });
  if (any.reader().is_incomplete())
    any.reader().finish();  // not TOML, so keys that appear to be missing may be present
  HardwareKind kind;
  if (tables.empty()) {
    any.check(name);
    any.reader().finish();
    kind.by_ranks[HardwareKind::kAnyRanks] = any.hardware();
    return kind;
  }
  std::vector<std::string> problems = any.reader().problems();
  const auto was_set = [&](const Field& field) { return any.reader().was_set(field.key); };
  if (const auto set = std::ranges::find_if(any.reader().fields(), was_set); set != any.reader().fields().end())
    problems.push_back(str(name, ": [", set->section(), "] applies to any number of ranks, and [", kTable,
                           tables.begin()->first, ".", set->section(), "] to some; remove one of them"));
  for (auto& [ranks, table] : tables) {
    table.check(name);
    problems.insert(problems.end(), table.reader().problems().begin(), table.reader().problems().end());
    kind.by_ranks[ranks] = table.hardware();
  }
  check_problems(problems);
  return kind;
}

HardwareKind load_hardware(const std::string& name, const Path& folder) {
  std::error_code error;
  if (name.ends_with(".toml")) {
    check_input(std::filesystem::exists(name, error), "unknown hardware: ", name, " does not exist", kCalibrateHint);
    return parse_hardware(read_text_file(name), name);
  }
  const std::vector<std::string> names = names_in(folder);
  if (std::ranges::find(names, name) == names.end()) {
    const std::string nearest = nearest_name(name, names);
    fail(ExitCode::BadInput, "unknown hardware \"", name, "\"; ",
         !nearest.empty() ? str("did you mean ", nearest, "?")
         : names.empty()  ? str("no files are in ", folder.string(),
                                "; set --hardware to a file, or --hardware_folder to its folder")
                          : str("available are ", join(names, ", "), " in ", folder.string(),
                                ", or a file: a copy of one of them with different values"),
         kCalibrateHint);
  }
  const Path file = folder / (name + ".toml");
  return parse_hardware(read_text_file(file), file.string());
}

std::string print_hardware(const HardwareKind& kind) {
  std::string text;
  for (const auto& [ranks, hardware] : kind.by_ranks) {
    const std::string prefix = ranks == HardwareKind::kAnyRanks ? "" : str(kTable, ranks, ".");
    text += str(text.empty() ? "" : "\n", print_sections(hardware, prefix));
  }
  return text;
}

std::string print_hardware(const Hardware& hardware) {
  return print_sections(hardware, "");
}

}  // namespace mcpp
