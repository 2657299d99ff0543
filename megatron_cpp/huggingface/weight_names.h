// What the families of Hugging Face call the weights of a model, and how ours are made of theirs.
#pragma once
#include <string_view>
#include <vector>

#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

/// How one of our parameters is made of theirs. Biases are vectors, which nobody transposes.
enum class Made : u8 {
  AsIs,
  Transposed,     ///< Conv1D stores its matrix as [in, out]
  Padded,         ///< a row per token of the vocabulary, of which we have some more
  Flat,           ///< in the same order, with one axis for our first two: QKV by heads, or gate and up
  Qkv,            ///< all query heads, all keys, all values, of one tensor or of one for each
  QkvTransposed,  ///< the same of one tensor of Conv1D
  Stacked,        ///< gate, then up
  PerExpert,      ///< of each expert in turn its tensors, one after another
};

/// Names without ".weight" or ".bias"; in a layer also without "decoder.layers.3." and what they call that. # stands
/// for the number of an expert.
struct Counterpart {
  std::string_view ours;
  Made made;
  std::vector<std::string_view> theirs;
};

std::vector<Counterpart> counterparts(HuggingfaceFamily family);

}  // namespace mcpp
