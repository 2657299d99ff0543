// Parameter: its name, its box in the global tensor, and views of its weight and fp32 gradient, which the data-parallel
// buffer provides.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "nn/placement.h"
#include "tensor/ops/low_precision/fp8_weights.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Distribution of initial values. DecayRate: logarithm of a uniform number in [1, 16]; TimeStep: inverse of softplus
/// of a number in [0.001, 0.1] with a uniform logarithm (Gu, Dao, "Mamba", 2023).
enum class Init : u8 { Normal, Zeros, Ones, DecayRate, TimeStep };

/// Rounding of a weight to fp8 in the GEMMs of forward and backward.
struct Fp8Rounding {
  std::string group;  ///< name of the layer; its weights share the scale of the full tensor
  WeightBlocks blocks;
};

/// Box of a global tensor held by one rank.
struct Box {
  Shape global;  ///< shape of the global tensor
  Shape offset;  ///< first index along each axis
  Shape shape;   ///< shape of the box
};

/// Returns the box of a tensor of shape `global` that covers [first, first + count) along `axis` and the full extent of
/// the other axes.
inline Box slab(const Shape& global, std::size_t axis, i64 first, i64 count) {
  Box box{global, Shape(global.size(), 0), global};
  box.offset[axis] = first;
  box.shape[axis] = count;
  return box;
}

struct Param {
  std::string name;  ///< Megatron's global name: "decoder.layers.3.mlp.linear_fc1.weight"
  Box box;
  Init init = Init::Normal;
  double init_std = 0.02;  ///< standard deviation of Init::Normal
  /// Width of the inputs relative to the base model, by which optimizers scale the update (maximal update
  /// parametrization); 1: no scaling.
  double width_mult = 1;

  Placement placement;  ///< ranks that hold the parameter
  /// Returns true if this box, or another box of the same tensor, is Partial along tp.
  bool has_partial_slices() const { return placement.tp.spread == Spread::Partial || others_are_partial; }
  bool others_are_partial = false;  ///< another box of the same tensor is Partial along tp

  /// Linear maps between hidden vectors that are fused in the global tensor, for optimizers that treat each as a
  /// matrix. In these boxes all axes except the last are rows. Empty for biases, norms, embeddings, the output layer
  /// and routers.
  std::vector<Box> matrices;
  /// Maximum number of rows of an attention head along axis 1 of each of `matrices`, which has the queries, keys or
  /// values of all heads; 0 if there are no heads.
  i64 head_rows = 0;

  /// Rounding that all uses of the weight apply; std::nullopt if a use needs the weight itself.
  std::optional<Fp8Rounding> fp8_rounding;

  Tensor value;      ///< box.shape, in the model's dtype
  Tensor main_grad;  ///< box.shape, in fp32 (fp64 in an fp64 model)

  /// Creates a parameter that is not sharded.
  Param(std::string param_name, const Shape& shape, Init how, double std = 0.02)
      : Param(std::move(param_name), Box{shape, Shape(shape.size(), 0), shape}, how, std) {}
  Param(std::string param_name, Box where, Init how, double std = 0.02)
      : name(std::move(param_name)), box(std::move(where)), init(how), init_std(std) {}

  i64 numel() const { return mcpp::numel(box.shape); }

  /// Makes the next gradient overwrite main_grad instead of adding to it, which is cheaper than filling it with zeros.
  void clear_grad() { is_grad_clear_ = true; }
  /// Adds a contribution to main_grad. f(main_grad, beta) must compute beta main_grad + contribution; beta is 0 for the
  /// first call after clear_grad() and 1 afterwards.
  template <class F>
  void add_grad(F&& f) {
    f(main_grad, std::exchange(is_grad_clear_, false) ? 0.0f : 1.0f);
  }
  bool has_grad() const { return !is_grad_clear_; }
  /// Marks the gradient as written, after a recorded pass has written or added to it.
  void mark_grad_written() { is_grad_clear_ = false; }

 private:
  bool is_grad_clear_ = true;
};

using ParamVisitor = std::function<void(Param&)>;

/// Fills `values`, elements [first, first + values.numel()) of the parameter's box, with initial values. The values
/// depend only on `seed`, the parameter's name and the global element index, and thus not on the layout. Uses only
/// name, box and init of `param`.
void initialize(const Param& param, u64 seed, i64 first, Tensor& values);
/// Initializes param.value.
void initialize(Param& param, u64 seed);

}  // namespace mcpp
