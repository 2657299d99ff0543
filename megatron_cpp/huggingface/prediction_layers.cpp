#include "megatron_cpp/huggingface/prediction_layers.h"

#include <algorithm>
#include <charconv>

#include "base/strings.h"

namespace mcpp {
namespace {

constexpr std::string_view kModule = "mtp.";
/// Maximum number of layers to count. Tensors of later layers have no counterpart in any model.
constexpr i64 kMaxCount = 1000;

/// Returns the number of the layer that a tensor belongs to and the rest of its name, or std::nullopt if its name does
/// not begin with `layers` and a number.
std::optional<std::pair<i64, std::string_view>> split_layer(std::string_view name, std::string_view layers) {
  if (!name.starts_with(layers)) return std::nullopt;
  name.remove_prefix(layers.size());
  i64 layer = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  const auto digits = static_cast<std::size_t>(end - name.data());
  if (error != std::errc() || layer < 0 || digits == name.size() || name[digits] != '.') return std::nullopt;
  return std::pair(layer, name.substr(digits + 1));
}

/// Returns true for tensors that only layers for multi-token prediction have.
bool is_prediction_tensor(std::string_view name) {
  constexpr std::string_view kModules[]{"enorm.", "hnorm.", "eh_proj.", "shared_head.", "embed_tokens."};
  return std::ranges::any_of(kModules, [&](std::string_view module) { return name.starts_with(module); });
}

/// Returns the number of layers in a file with PredictionForm::Branches, which has one projection per layer.
i64 count_branched(const SafetensorsReader& file) {
  i64 count = 0;
  bool has_any = false;
  for (const SafeTensor& tensor : file.tensors()) {
    has_any = has_any || tensor.name.starts_with(kModule);
    const auto branch = split_layer(tensor.name, str(kModule, "layers."));
    count += branch && branch->second == "eh_proj.weight" ? 1 : 0;
  }
  return std::max<i64>(count, has_any ? 1 : 0);
}

/// Returns the number of layers for multi-token prediction in the file.
i64 count_stored(const SafetensorsReader& file, const Family& family, i64 num_layers) {
  if (family.traits.prediction == PredictionForm::None) return 0;
  if (family.traits.prediction == PredictionForm::Branches) return count_branched(file);
  const bool is_module = family.traits.prediction == PredictionForm::Module;
  const std::string layers = is_module ? str(kModule, "layers.") : str(family.base, family.layers);
  i64 count = 0;
  for (const SafeTensor& tensor : file.tensors()) {
    if (is_module && tensor.name.starts_with(kModule)) count = std::max<i64>(count, 1);
    const auto layer = split_layer(tensor.name, layers);
    if (!layer || (!is_module && !is_prediction_tensor(layer->second))) continue;
    const i64 index = layer->first - (is_module ? 0 : num_layers);
    if (index < kMaxCount) count = std::max(count, index + 1);
  }
  return count;
}

std::string describe_count(i64 count) {
  return str(count, count == 1 ? " layer" : " layers", " for multi-token prediction");
}

/// Returns the prefixes of the tensors of layers [first, end).
std::vector<std::string> prefixes_of(const Family& family, i64 num_layers, i64 first, i64 end) {
  if (first == end) return {};
  if (family.traits.prediction != PredictionForm::After) return {std::string(kModule)};
  std::vector<std::string> prefixes;
  for (i64 layer = num_layers + first; layer < num_layers + end; ++layer)
    prefixes.push_back(str(family.base, family.layers, layer, "."));
  return prefixes;
}

}  // namespace

PredictionLayers choose_prediction_layers(const SafetensorsReader& file, const Family& family, i64 num_layers,
                                          std::optional<i64> stated, std::optional<i64> requested,
                                          const std::string& folder) {
  constexpr const char* kHint = "; --mtp_num_layers sets how many to import, 0 = none";
  const PredictionForm form = family.traits.prediction;
  const i64 stored = count_stored(file, family, num_layers);
  check_input(requested.value_or(0) <= stored, folder, ": --mtp_num_layers=", requested.value_or(0), ", but ",
              form != PredictionForm::None
                  ? str("the file has ", describe_count(stored))
                  : str("model type ", family.model_type, " has no layers for multi-token prediction"));
  const bool lacks_all = !requested && stored == 0;
  check_input(requested || lacks_all || stated.value_or(stored) == stored, folder, ": '", family.traits.prediction_key,
              "' of config.json is ", stated.value_or(0), ", but the file has ", describe_count(stored), kHint);
  const i64 count = requested.value_or(stored);
  check_input(form != PredictionForm::Module || count <= 1, folder, ": the file has ", describe_count(stored),
              ", which share norms and a projection; one is supported", kHint);
  PredictionLayers layers{.count = count, .absent = lacks_all ? stated.value_or(0) : 0};
  layers.skipped = prefixes_of(family, num_layers, count, stored);
  return layers;
}

}  // namespace mcpp
