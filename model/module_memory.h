// What each module of a model, embedding, layer or output, takes of a rank's memory.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "model/memory.h"

namespace mcpp {

/// Bytes of one module on one rank.
struct ModuleMemory {
  double params = 0, grads = 0;
  double optimizer_state = 0;  ///< wherever it is kept
  double activations = 0;      ///< that forward of a microbatch leaves on the device, its result in place of its input
};
using MemoryByModule = std::map<std::string, ModuleMemory>;

/// "embedding", "decoder.layers.3", "output_layer": the modules, and the one that a parameter is of. The last norm is
/// the output's; the copy of tied embeddings on the stage of the output is the embedding's.
std::string embedding_module();
std::string layer_module(i64 layer);
std::string output_module();
std::string module_of(std::string_view parameter);

/// Of what stays from step to step, and of one microbatch: what is whole for a time, messages and the working set of a
/// pass, are no module's. Where ranks share what ZeRO cuts the mean over them. Layers that are recomputed together
/// leave what they leave under the name of the first.
MemoryByModule memory_by_module(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                                const RankShare& share);

}  // namespace mcpp
