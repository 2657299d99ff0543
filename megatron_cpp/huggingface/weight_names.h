// Names of weights in the Hugging Face families, and how our parameters are assembled from theirs.
#pragma once
#include <string_view>
#include <vector>

#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

/// Conversion of theirs to one of our parameters. Biases are vectors and never transposed.
enum class WeightConversion : u8 {
  AsIs,
  Transposed,     ///< Conv1D stores its matrix as [in, out]
  Padded,         ///< a row per token of the vocabulary, to which we add padding
  Flat,           ///< in the same order, with one axis for our first two: QKV by heads, or gate and up
  Qkv,            ///< all query heads, all keys, all values, in one tensor or in three
  QkvTransposed,  ///< as Qkv in one tensor of Conv1D
  Stacked,        ///< gate, then up
  PerExpert,      ///< tensors of each expert in turn
};

/// Correspondence of names. They omit ".weight" and ".bias" and, in a layer, "decoder.layers.3." or its counterpart. #
/// stands for the number of an expert.
struct Counterpart {
  std::string_view ours;
  WeightConversion conversion;
  std::vector<std::string_view> theirs;
};

std::vector<Counterpart> counterparts(HuggingfaceFamily family);

}  // namespace mcpp
