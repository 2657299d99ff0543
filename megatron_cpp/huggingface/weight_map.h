// Mapping between parameters of this program ("ours") and rows of Hugging Face tensors ("foreign"). After transposing
// tensors that are stored as [in, out], the two layouts differ only in the order of entire rows. One description
// therefore suffices for both directions.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megatron_cpp/huggingface/weight_names.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Hugging Face tensor as a matrix [rows, columns] whose rows are output features. A tensor with one matrix per expert
/// has the rows of expert 0, then the rows of expert 1, ...
struct ForeignTensor {
  std::string name;
  Shape shape;                 ///< shape as stored
  bool is_transposed = false;  ///< stored as [columns, rows], or as [experts, columns, rows] with one matrix per expert
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

/// Correspondence of `count` rows: our rows our_row, our_row + 1, ... are rows foreign_row, foreign_row + foreign_step,
/// ... of foreign tensor number `foreign`. In a transposed tensor with experts, they belong to one expert.
struct RowMove {
  std::size_t foreign = 0;
  i64 foreign_row = 0;
  i64 our_row = 0;
  i64 count = 0;
  i64 foreign_step = 1;
};

/// Rule that assembles one of our parameters from foreign tensors.
struct WeightRule {
  std::string name;  ///< name of our parameter
  Shape shape;       ///< shape of our unsharded parameter
  std::vector<ForeignTensor> foreign;
  /// Correspondence of rows. Rows of our parameter without a move are padding. Rows of a foreign tensor without a move
  /// belong to other rules.
  std::vector<RowMove> moves;
  std::optional<DType> dtype = {};  ///< type of the parameter, if it differs from the type of the weights
  /// Names of copies of the only foreign tensor. Layers for multi-token prediction may have copies of shared matrices.
  std::vector<std::string> copies = {};

  i64 columns() const { return foreign[0].columns(); }
};

/// Adds the shape of the foreign tensor and the row moves of a Mamba-2 parameter [groups, channels, ...]: the weight of
/// the input projection, or the weight or bias of the convolution.
void add_mamba_rows(WeightRule& rule, const ScanShape& shape);

/// Names of the weights in a format.
struct WeightNames {
  /// Prefix of names outside the layers, prefix of those inside a layer (before its number), and name of the output
  /// matrix.
  std::string_view base, layers, output;
  PredictionForm prediction = PredictionForm::None;
  std::vector<Counterpart> counterparts;
};
/// Returns the names of a Hugging Face family. `base` is the family's prefix, or "" for files of GPT-2's bare model.
WeightNames weight_names(const Family& family, std::string_view base);

/// Returns the rules for all parameters of a model, word embeddings first. Throws BadInput if the format has no name
/// for one of them. `check` is called with each rule before the next rule is created and may throw, which bounds the
/// memory if config.json has far larger sizes than the tensors.
std::vector<WeightRule> weight_map(const ModelConfig& model, const WeightNames& names,
                                   const std::function<void(const WeightRule&)>& check = {});
/// Returns the rules for a Hugging Face family, which must be able to express the model.
inline std::vector<WeightRule> weight_map(const ModelConfig& model, const Family& family) {
  return weight_map(model, weight_names(family, family.base));
}

/// Returns our parameter, assembled from the tensors of rule.foreign in the same order. All must have one type.
Tensor gather_rows(const WeightRule& rule, const std::vector<Tensor>& foreign);

/// Returns true for the masks and RoPE tables that old versions of transformers stored.
bool is_buffer(const std::string& name);

/// Throws BadInput if a tensor has non-finite values, or values that its element type cannot represent. `what` names
/// it.
void check_finite(const Tensor& values, const std::string& what);

/// Foreign tensor and all rules that use rows of it.
struct ForeignParts {
  struct Part {
    const WeightRule* rule = nullptr;
    std::size_t index = 0;  ///< position of the tensor in rule->foreign
  };
  ForeignTensor tensor;
  std::vector<Part> parts;
};

/// Returns the foreign tensors of the rules and their copies in the order of first use. `rules` must outlive the
/// result.
std::vector<ForeignParts> foreign_tensors(const std::vector<WeightRule>& rules);
/// Returns the foreign tensor, assembled from our parameters. `ours` returns the parameter of a rule. All parameters
/// must have one type.
Tensor scatter_rows(const ForeignParts& foreign, const std::function<Tensor(const WeightRule& rule)>& ours);

}  // namespace mcpp
