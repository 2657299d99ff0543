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
  double activations = 0;      ///< device bytes kept by forward of a microbatch, with its result but without its input
};
using MemoryByModule = std::map<std::string, ModuleMemory>;

/// Return the module names "embedding", "decoder.layers.3" and "output_layer", and the module that a parameter belongs
/// to. The final norm belongs to the output; the copy of tied embeddings in the output's stage belongs to the
/// embedding.
std::string embedding_module();
std::string layer_module(i64 layer);
std::string output_module();
std::string module_of(std::string_view parameter);

/// Returns the memory that persists between steps and the memory of one microbatch. Unsharded units, messages and
/// working sets belong to no module. Averages over the ranks of a ZeRO shard group. Layers that are recomputed together
/// are counted under the name of the first.
MemoryByModule memory_by_module(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                                const RankMemorySpec& share);

}  // namespace mcpp
