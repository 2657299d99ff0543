#include "megatron_cpp/config/variants.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr const char* kVariantTable = "variant";

/// Keys of a variant outside of its sections.
struct VariantKeys {
  std::string name;
  std::optional<double> max_difference;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("name", self.name, "name of the variant in results");
    visit("max_difference", self.max_difference,
          "largest accepted difference of the loss from the first variant, in percent", between(0, 100));
  }
};

/// Returns the reason why variants cannot differ in this key; "" if they can.
std::string shared_key_reason(std::string_view key) {
  if (key == "training.seed") return "all variants train with the same seeds; remove it, and set --seeds";
  if (key.starts_with("checkpoint.") || key.starts_with("logging."))
    return "applies to all variants; set it in the configuration";
  return "";
}

/// Reads one [[variant]] table into a copy of the base configuration.
class VariantReader {
 public:
  VariantReader(const Config& base, const TableSettings& table) : location_(table.location) {
    variant_.config = without_unused_keys(base);
    std::vector<Field> fields;
    list_fields(keys_, "", fields);
    for (Field& field : config_fields(variant_.config)) fields.push_back(std::move(field));
    SettingsReader reader(std::move(fields));
    for (const Setting& setting : table.settings) {
      const std::string reason = shared_key_reason(setting.key);
      if (!reason.empty()) reader.add_problem(str(setting.location, ": ", setting.spelling, ": ", reason));
      if (reason.empty()) reader.assign(setting);
    }
    if (keys_.name.empty() && !reader.is_doubtful("name"))
      reader.add_problem(str(location_, ": ", kVariantTable, ".name: is missing"));
    complete_config(variant_.config, reader, location_);
    problems_ = reader.problems();
    variant_.name = keys_.name;
    variant_.max_difference = keys_.max_difference;
  }
  // Fields of the reader refer to members.
  VariantReader(const VariantReader&) = delete;
  VariantReader& operator=(const VariantReader&) = delete;

  const std::string& location() const { return location_; }
  const Variant& variant() const { return variant_; }
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  std::string location_;
  VariantKeys keys_;
  Variant variant_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<Variant> parse_variants(const Config& base, std::string_view toml, const std::string& file) {
  Config unused;
  SettingsReader reader(config_fields(unused));
  reader.accept_tables(kVariantTable);
  read_toml(toml, file, reader);
  std::vector<std::string> problems = reader.problems();
  for (const Field& field : reader.fields()) {
    if (reader.was_set(field.key))
      problems.push_back(str(file, ": ", field.key, ": is in no [[", kVariantTable,
                             "]]; keys of all variants belong in the configuration or on the command line"));
  }
  std::vector<Variant> variants;
  std::set<std::string> names;
  for (const TableSettings& table : reader.tables()) {
    const VariantReader variant(base, table);
    problems.insert(problems.end(), variant.problems().begin(), variant.problems().end());
    if (const std::string& name = variant.variant().name; !name.empty() && !names.insert(name).second)
      problems.push_back(str(variant.location(), ": ", kVariantTable, ".name: ", toml_string(name),
                             " is also the name of an earlier variant"));
    variants.push_back(variant.variant());
  }
  if (variants.size() < 2 && !reader.is_incomplete())
    problems.push_back(str(file, ": has ", variants.size(), " [[", kVariantTable,
                           "]] tables; a comparison needs at least two, of which the first is the baseline"));
  check_problems(problems);
  return variants;
}

}  // namespace mcpp
