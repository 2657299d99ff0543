// Names of weights in the Hugging Face families, and the conversions between their tensors and our parameters.
#pragma once
#include <string_view>
#include <vector>

#include "megatron_cpp/huggingface/families.h"

namespace mcpp {

/// Conversion of one or more foreign tensors to one of our parameters. Biases are vectors, which are never transposed.
enum class WeightConversion : u8 {
  AsIs,
  Transposed,     ///< stored by Conv1D as [in, out]
  Padded,         ///< one row per token of the vocabulary; ours has padding rows after them
  Flat,           ///< same order of rows, but our first two axes are one: QKV by heads, or gate and up
  HeadVector,     ///< a vector [heads], stored as [1, 1, heads, 1]
  Qkv,            ///< all query heads, then all key heads, then all value heads, in one tensor or in three
  QkvTransposed,  ///< Qkv in one tensor, stored by Conv1D as [in, out]
  QkvGated,       ///< Qkv in three tensors; the rows of a query head are followed by the rows of its output gate
  HeadGates,      ///< output gates of attention, from the tensor of the queries (QkvGated)
  // Parameters of linear attention, which have one row per channel of each group (tensor/ops/scan/scan_shape.h).
  MixerByGroup,   ///< by group; one tensor has the channels up to the output gate, another the gates of the recurrence
  MixerSections,  ///< queries of all groups, then keys of all groups, ...; the first tensor has the sections that the
                  ///< others lack
  Stacked,        ///< the rows of the gate tensor, then those of the up tensor
  PerExpert,      ///< the tensors of expert 0, then of expert 1, ...; gate and up may be one tensor, as in Flat
  ExpertRows,     ///< one tensor [experts, out, in] or [experts, out]; gate and up, if gated, are the halves of `out`
  LatentQueries,  ///< queries of multi-latent attention by heads, each of which ends with interleaved rotary rows
  Latents,        ///< the compressed keys and values, then the interleaved rows of the rotary key
  /// Qkv in three tensors, where the two channels of a query or key head that RoPE rotates together are adjacent.
  QkvPairs,
  // One tensor with the matrices of all experts, [experts, in, out], whose name has no ".weight". The name of the
  // biases, [experts, out], ends in "_bias" instead of ".bias".
  Experts,             ///< gate and up, if gated, are the halves of `out`
  ExpertsInterleaved,  ///< gate and up alternate in `out`
  Mamba,               ///< channels of the input projection or convolution of Mamba-2 (add_mamba_rows)
};

/// Corresponding names. They omit ".weight" or ".bias" and, inside a layer, "decoder.layers.3." or its counterpart. Our
/// names in a layer for multi-token prediction, outside of its block, begin with "mtp." instead of "mtp.layers.0.". "#"
/// stands for the number of an expert.
struct Counterpart {
  std::string_view ours;
  WeightConversion conversion;
  std::vector<std::string_view> theirs;
};

/// Returns the names of all weights of a family.
std::vector<Counterpart> counterparts(const Family& family);

}  // namespace mcpp
