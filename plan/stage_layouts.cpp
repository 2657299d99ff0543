#include "plan/stage_layouts.h"

#include <algorithm>

#include "base/integer_math.h"
#include "base/strings.h"
#include "model/flops.h"

namespace mcpp {
namespace {

/// Compute of the embedding, in layers: small, but it breaks ties in favor of other stages.
constexpr double kEmbedding = 0.01;

/// Returns the number of layers with the same operations as the output.
double output_in_layers(const ModelConfig& m) {
  const double output = 6 * real(m.hidden_size) * real(m.padded_vocab_size());
  return output / (flops_per_token(m) - output) * real(m.num_layers);
}

/// Assigns layers one by one to the stage with the least load; ties go to the last stage, which has fewest microbatches
/// in flight.
std::vector<i64> balance_layers(const ModelConfig& m, i64 stages) {
  std::vector<double> load(static_cast<std::size_t>(stages), 0);
  load.front() += kEmbedding;
  load.back() += output_in_layers(m);
  std::vector<i64> layers(load.size(), 0);
  for (i64 i = 0; i < m.num_layers; ++i) {
    const auto least = std::ranges::min_element(load.rbegin(), load.rend());
    const auto stage = static_cast<std::size_t>(load.rend() - least - 1);
    load[stage] += 1;
    ++layers[stage];
  }
  return layers;
}

std::string layers_text(i64 layers) {
  return layers == 0 ? "" : layers == 1 ? "t" : str("t*", layers);
}

/// Returns text like "Et*7|(t*8|)*14t*7L".
std::string layout_text(const std::vector<i64>& layers) {
  std::string text = str("E", layers_text(layers.front()), "|");
  for (std::size_t i = 1; i + 1 < layers.size();) {
    std::size_t end = i;
    while (end + 1 < layers.size() && layers[end] == layers[i]) ++end;
    text += end - i > 1 ? str("(", layers_text(layers[i]), "|)*", end - i) : str(layers_text(layers[i]), "|");
    i = end;
  }
  return str(text, layers_text(layers.back()), "L");
}

}  // namespace

std::vector<std::string> stage_layouts(const ModelConfig& model, i64 stages) {
  if (model.num_layers + 2 < stages) return {};
  std::vector<std::string> list;
  const std::vector<i64> layers = balance_layers(model, stages);
  const bool is_even = model.num_layers % stages == 0;
  if (is_even) list.emplace_back();
  if (!is_even || std::ranges::count(layers, layers.front()) != stages) list.push_back(layout_text(layers));
  return list;
}

}  // namespace mcpp
