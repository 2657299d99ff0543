#include "megatron_cpp/config/data_files.h"

#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/json.h"
#include "base/object_store/stored_file.h"

namespace mcpp {
namespace {

std::vector<std::string> words_of(const std::string& file) {
  std::istringstream text(read_stored_text(file));
  std::vector<std::string> words;
  for (std::string word; text >> word;) words.push_back(word);
  check_input(!words.empty(), file, ": is empty; list dataset prefixes, each optionally preceded by its weight");
  return words;
}

/// Returns the elements of a list of strings and numbers.
std::vector<std::string> elements_of(const OrderedJson& list, const std::string& file, const std::string& member) {
  std::vector<std::string> elements;
  const auto is_element = [](const OrderedJson& e) { return e.is_string() || e.is_number(); };
  check_input(list.is_array() && std::ranges::all_of(list, is_element), file, ": ", member,
              ": must be a list of weights and dataset prefixes");
  for (const OrderedJson& element : list)
    elements.push_back(element.is_string() ? element.get<std::string>() : element.dump());
  return elements;
}

void read_splits(const std::string& file, DataConfig& data) {
  const OrderedJson splits = OrderedJson::parse(read_stored_text(file), nullptr, /*allow_exceptions=*/false);
  check_input(splits.is_object() && splits.contains("train"), file,
              ": must be a JSON object with a member \"train\" and, optionally, \"valid\" and \"test\"");
  data.data_path.clear();
  data.valid_data_path.clear();
  data.test_data_path.clear();
  for (const auto& [member, list] : splits.items()) {
    check_input(member == "train" || member == "valid" || member == "test", file, ": unknown member \"", member,
                "\"; the members are train, valid and test");
    if (list.is_null()) continue;
    std::vector<std::string> entries = elements_of(list, file, member);
    (member == "train"   ? data.train_data_path
     : member == "valid" ? data.valid_data_path
                         : data.test_data_path) = std::move(entries);
  }
}

}  // namespace

void read_data_files(DataConfig& data, SettingsReader& reader, std::string_view default_location) {
  const std::string list = std::exchange(data.data_args_path, ""),
                    splits = std::exchange(data.per_split_data_args_path, "");
  const auto report = [&](const char* key, const std::string& problem) {
    reader.add_conflict(str("data.", key, ": ", problem), default_location);
  };
  if (!list.empty() && !splits.empty())
    return report("data_args_path", "cannot be combined with per_split_data_args_path; remove one");
  const char* key = list.empty() ? "per_split_data_args_path" : "data_args_path";
  if (list.empty() && splits.empty()) return;
  for (const char* replaced : {"data_path", "train_data_path", "valid_data_path", "test_data_path"}) {
    const bool is_replaced = list.empty() || std::string_view(replaced) == "data_path";
    if (is_replaced && reader.was_set(str("data.", replaced)))
      return report(key, str("replaces ", replaced, "; remove one"));
  }
  try {
    if (list.empty())
      read_splits(splits, data);
    else
      data.data_path = words_of(list);
  } catch (const Error& error) {
    report(key, error.what());
  }
}

}  // namespace mcpp
