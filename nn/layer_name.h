// Names of layers. Statistics of parameters are grouped by layer.
#pragma once
#include <string>
#include <string_view>

namespace mcpp {

/// Returns the name of the layer of a parameter: "decoder.layers.3" for all parameters of the layer, "embedding",
/// "output_layer", "decoder.final_layernorm".
std::string layer_of(std::string_view parameter);

/// Returns a sort key of the result of layer_of(): the embedding, the layers in order, all others, and the output
/// layer.
int layer_order(std::string_view layer);

}  // namespace mcpp
