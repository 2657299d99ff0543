#include "nn/layer_name.h"

#include <limits>

namespace mcpp {
namespace {

constexpr std::string_view kLayers = "decoder.layers.";

}  // namespace

std::string layer_of(std::string_view parameter) {
  const std::size_t begin = parameter.starts_with(kLayers) ? kLayers.size() : 0;
  const std::size_t end = parameter.find('.', begin);
  if (begin > 0 || !parameter.starts_with("decoder.")) return std::string(parameter.substr(0, end));
  return std::string(parameter.substr(0, parameter.find('.', end + 1)));
}

int layer_order(std::string_view layer) {
  if (layer.starts_with(kLayers)) return std::stoi(std::string(layer.substr(kLayers.size())));
  constexpr int kEnd = std::numeric_limits<int>::max() - 1;
  return layer == "embedding" ? -1 : layer == "output_layer" ? kEnd + 1 : kEnd;
}

}  // namespace mcpp
