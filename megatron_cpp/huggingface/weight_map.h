// Correspondence of our parameters to rows of Hugging Face tensors. The two layouts differ only in the order of entire
// rows, after transposing where GPT-2 stores [in, out], so that one description suffices for both directions.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron_cpp/huggingface/families.h"
#include "tensor/tensor.h"

namespace mcpp {

// Names of weights in the Hugging Face families, and the assembly of our parameters from foreign tensors.

/// Conversion of foreign tensors to one of our parameters. Biases are vectors and never transposed.
enum class WeightConversion : u8 {
  AsIs,
  Transposed,     ///< Conv1D stores its matrix as [in, out]
  Padded,         ///< a row per token of the vocabulary, to which we add padding
  Flat,           ///< same order of rows, with one axis for our first two: QKV by heads, or gate and up
  Qkv,            ///< all query heads, all keys, all values, in one tensor or in three
  QkvTransposed,  ///< Qkv in one tensor of Conv1D
  QkvGated,       ///< Qkv in three tensors; the rows of a query head are followed by those of its output gate
  HeadGates,      ///< output gates of attention, from the tensor of the queries (QkvGated)
  // Parameters of Gated DeltaNet, which have a row per channel of a group (tensor/ops/scan/scan_shape.h).
  MixerByGroup,  ///< channels of each group up to the output gate in one tensor, the gates of the recurrence in another
  MixerSections,  ///< queries of all groups, then keys of all groups, ...; the first tensor has what the others lack
  Stacked,        ///< the rows of the gate tensor, then those of the up tensor
  PerExpert,      ///< the tensors of expert 0, then of expert 1, ...
  LatentQueries,  ///< queries of multi-latent attention by heads, each with interleaved rotary rows at its end
  Latents,        ///< the latent of keys and values, then interleaved rows of the rotary key
  /// Qkv in three tensors, where the channels of a query or key head that RoPE rotates together are adjacent.
  QkvPairs,
  // One tensor with the matrices of all experts, [experts, in, out]. Its name has no ".weight"; that of biases,
  // [experts, out], ends in "_bias" instead of ".bias".
  Experts,             ///< gate and up, if gated, are the halves of `out`
  ExpertsInterleaved,  ///< gate and up alternate in `out`
  Mamba,               ///< channels of the input projection or convolution of Mamba-2 (add_mamba_rows)
};

/// Corresponding names, without ".weight" or ".bias" and, in a layer, without "decoder.layers.3." or its counterpart. #
/// is the number of an expert.
struct Counterpart {
  std::string_view ours;
  WeightConversion conversion;
  std::vector<std::string_view> theirs;
};

std::vector<Counterpart> counterparts(HuggingfaceFamily family);

/// Hugging Face tensor as a matrix whose rows are output features: [rows, columns]. A tensor with a matrix per expert
/// has the rows of expert 0, then those of expert 1, ...
struct ForeignTensor {
  std::string name;
  Shape shape;                 ///< shape as stored
  bool is_transposed = false;  ///< stored as [columns, rows], or a matrix per expert as [experts, columns, rows]
  bool is_vector = false;      ///< each element is a row

  i64 columns() const {
    if (is_vector || shape.size() == 1) return 1;
    return is_transposed ? shape[shape.size() - 2] : shape.back();
  }
  // Strides and offsets in elements.
  i64 row_stride() const { return is_transposed ? 1 : columns(); }
  i64 column_stride() const { return is_transposed ? shape.back() : 1; }
  i64 offset(i64 row) const {
    if (!is_transposed) return row * columns();
    return row / shape.back() * columns() * shape.back() + row % shape.back();
  }
};

/// Range of rows: the `count` rows foreign_row, foreign_row + foreign_step, ... of foreign tensor number `foreign`,
/// all of one expert if it is transposed, are our rows from `our_row`.
struct RowMove {
  std::size_t foreign = 0;
  i64 foreign_row = 0;
  i64 our_row = 0;
  i64 count = 0;
  i64 foreign_step = 1;
};

struct WeightRule {
  std::string name;  ///< name of our parameter
  Shape shape;       ///< global
  std::vector<ForeignTensor> foreign;
  /// Rows of foreign tensors. Our other rows are padding; rows of a foreign tensor that do not occur belong to other
  /// rules.
  std::vector<RowMove> moves;
  std::optional<DType> dtype = {};  ///< fixed type of the parameter; std::nullopt = the type of the weights

  i64 columns() const { return foreign[0].columns(); }
};

/// Adds the shape of the foreign tensor and the row moves of a parameter of Mamba-2 whose first axes are groups and the
/// channels of a group: the weight of its input projection, or the weight or bias of its convolution.
void add_mamba_rows(WeightRule& rule, const ScanShape& shape);

/// Returns the rules for all parameters of a model that the family can express, word embeddings first, and for the
/// biases of its experts. `base` is prepended to the names: the family's prefix, or "" for files of GPT-2's bare model.
/// `check` is called with each rule before the next one is created. It may throw, because the sizes in config.json may
/// be far larger than the tensors.
std::vector<WeightRule> weight_map(const ModelConfig& model, const Family& family, std::string_view base,
                                   const std::function<void(const WeightRule&)>& check = {});
inline std::vector<WeightRule> weight_map(const ModelConfig& model, const Family& family) {
  return weight_map(model, family, family.base);
}

/// Returns our parameter, assembled from its foreign tensors (in the order of rule.foreign, all of one type).
Tensor gather_rows(const WeightRule& rule, const std::vector<Tensor>& foreign);

/// Foreign tensor, and every rule with rows of it.
struct ForeignParts {
  struct Part {
    const WeightRule* rule = nullptr;
    std::size_t index = 0;  ///< of the tensor in rule->foreign
  };
  ForeignTensor tensor;
  std::vector<Part> parts;
};

/// Returns the foreign tensors of the rules, in the order of their first occurrence. The rules must outlive the result.
std::vector<ForeignParts> foreign_tensors(const std::vector<WeightRule>& rules);
/// Returns the foreign tensor, extracted from our parameters. `ours` returns the parameter of a rule; all have one
/// type.
Tensor scatter_rows(const ForeignParts& foreign, const std::function<Tensor(const WeightRule& rule)>& ours);

}  // namespace mcpp
