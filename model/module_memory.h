// Memory of each module (embedding, layer or output) on a rank.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "model/memory.h"

namespace mcpp {

/// Bytes of one module on one rank.
struct ModuleMemory {
  double params = 0, grads = 0;
  double optimizer_state = 0;  ///< bytes on the device or offloaded
  double activations =
      0;  ///< device bytes that the forward pass of one microbatch saves, including the result but not the input
};
using MemoryByModule = std::map<std::string, ModuleMemory>;

/// These functions return the module names "embedding", "decoder.layers.3" and "output_layer", and the module of a
/// parameter. The final norm belongs to the output layer. The copy of tied embeddings in the stage of the output layer
/// belongs to the embedding.
std::string embedding_module();
std::string layer_module(i64 layer);
std::string output_module();
std::string module_of(std::string_view parameter);

/// Returns the memory that persists between steps and the memory of one microbatch. Unsharded units, messages and
/// working sets belong to no module. Values are averages over the ranks of a ZeRO shard group. A group of layers that
/// are recomputed together has the name of its first layer.
MemoryByModule memory_by_module(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                                const RankMemorySpec& share);

}  // namespace mcpp
