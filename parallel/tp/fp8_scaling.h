// Rounding of the operands of a linear layer's GEMMs. With the recipe `tensorwise`, each tensor has one scale, derived
// from the largest magnitude of its elements. Ranks that hold shards of a tensor reduce the magnitude, so that rounding
// does not depend on the sharding. With `delayed`, the magnitude is of past steps (amax_history.h). Blocks lie within a
// shard and need no communication. `nvfp4` has blocks and a scale of the tensor.
#pragma once
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "comm/communicator.h"
#include "nn/microbatch_context.h"
#include "nn/param.h"
#include "parallel/tp/amax_history.h"
#include "tensor/ops/low_precision/recipe.h"

namespace mcpp {

/// Low-precision settings of a linear layer.
struct Fp8Recipe {
  PassRecipes passes = {};
  /// Groups over which the tensors of one microbatch are sharded: tensor- and context-parallel ranks.
  std::vector<Communicator*> holders = {};
  u64 seed = 0;  ///< of the random numbers of nvfp4
  /// History of the layer, for the recipe `delayed`; null: its scales are computed as for `tensorwise`.
  AmaxHistory* history = nullptr;
};

/// Returns true if a linear layer overlaps communication with its GEMMs if `tp_comm_overlap` is set. GEMMs in low
/// precision are not split, because each part would round the weight again.
inline bool overlaps_communication(bool tp_comm_overlap, const std::optional<Fp8Recipe>& recipe) {
  return tp_comm_overlap && !recipe;
}

/// Sets Param::fp8_rounding of a weight, which consists of `matrices` matrices, if forward and the gradient of inputs
/// round it in the same way, with a scale of the full weight or of blocks that messages support.
void set_fp8_rounding(Param& weight, const std::string& layer, const PassRecipes& passes, i64 matrices = 1);

/// Scales of the two operands of a GEMM in fp8.
struct Fp8Operands {
  Fp8Scale a, b;
};
/// Scales of the two operands of a GEMM in NVFP4.
struct Nvfp4Operands {
  Nvfp4Scale a, b;
  std::optional<u32> hadamard_signs = {};  ///< if set, both operands are first transformed by ops::random_hadamard()
};
using GemmScales = std::variant<Fp8Operands, Nvfp4Operands>;

/// Columns of the gradient of a layer's output, by which random numbers are keyed.
struct OutputColumns {
  std::string weight;           ///< name of the weight
  std::vector<ColumnRun> runs;  ///< rows of the global weight that are the columns of this rank
};
/// Returns the columns of a layer whose weight is this box; all axes except the last are rows.
OutputColumns output_columns(const std::string& weight, const Box& box);

/// Magnitudes that the scales of full tensors are derived from, fp32 [1]; undefined if no pass needs them.
struct TensorMagnitudes {
  Tensor input = {}, weight = {}, gradient = {};
};

/// Scales of the operands of a layer's GEMMs. Each function returns std::nullopt if the pass does not round operands.
struct LinearScales {
  PassRecipes passes = PassRecipes::of(GemmRecipe::Bf16);
  TensorMagnitudes current = {};  ///< magnitudes of this pass
  TensorMagnitudes delayed = {};  ///< for the recipe `delayed`
  u64 seed = 0;                   ///< Fp8Recipe::seed
  std::vector<i64> samples = {};  ///< samples of the microbatch, for stochastic rounding
  PositionRanges positions = {};  ///< positions of the rows of the gradient

  std::optional<GemmScales> forward() const;                            ///< of x and W
  std::optional<GemmScales> dgrad(const OutputColumns& columns) const;  ///< of dy and W
  std::optional<GemmScales> wgrad(const OutputColumns& columns) const;  ///< of dy and x

 private:
  const TensorMagnitudes& magnitudes(GemmRecipe recipe) const {
    return recipe == GemmRecipe::Delayed ? delayed : current;
  }
  Nvfp4Operands nvfp4_dgrad(const OutputColumns& columns) const;
  Nvfp4Operands nvfp4_wgrad(const OutputColumns& columns) const;
  StochasticRounding stochastic(const char* pass, const OutputColumns& columns) const;
};

class Fp8Scaling {
 public:
  /// If `recipe` is not set, there are no scales, and GEMMs use the dtype of their operands.
  explicit Fp8Scaling(std::optional<Fp8Recipe> recipe) : recipe_(std::move(recipe)) {}

  /// Returns the scales of the input and the weight of a layer. Each of them may consist of several tensors or be
  /// sharded over ranks. If a scale follows from the current magnitude of the full input or
  /// weight, saves 8 bytes for backward() under `owner`. In training, records magnitudes in the history, if there is
  /// one.
  LinearScales forward(const void* owner, const Tensor& input, const std::vector<Tensor>& weight,
                       MicrobatchContext& context) const;
  /// Returns the scales of forward(), taken from the context, and of the output's gradient, whose first row is row
  /// `first_row` of the rank's positions.
  LinearScales backward(const void* owner, const std::vector<Tensor>& gradient, MicrobatchContext& context,
                        i64 first_row = 0) const;

 private:
  /// Returns true if scales are derived from the current magnitude of the tensor.
  bool needs_amax(ScaledTensor tensor) const;
  /// Returns true if forward() saves current magnitudes. The result is identical for all passes of a step.
  bool saves_amax() const { return needs_amax(ScaledTensor::Input) || needs_amax(ScaledTensor::Weight); }
  /// Returns the scales of the input and the weight. `amax` has their current magnitudes; undefined if they are not
  /// needed.
  LinearScales scales(const Tensor& amax) const;
  /// Returns the magnitude of the history, or `current` if it has none.
  Tensor delayed_amax(ScaledTensor tensor, const Tensor& current) const;
  void reduce_amax(Tensor& amax) const;

  std::optional<Fp8Recipe> recipe_;
};

/// Computes c = op(a) op(b) + beta c with ops::matmul() or, with scales, in low precision.
void multiply_scaled(const Tensor& a, const Tensor& b, Tensor& c, const std::optional<GemmScales>& scales,
                     const ops::MatmulOptions& options = {});

}  // namespace mcpp
