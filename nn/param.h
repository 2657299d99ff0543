// A parameter: its name, its place in the global tensor, and views of the weight and of the fp32 gradient that the
// data-parallel buffer hands it.
#pragma once
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "nn/placement.h"
#include "tensor/tensor.h"

namespace mcpp {

enum class Init : u8 { Normal, Zeros, Ones };

/// The box of a global tensor that one rank holds.
struct Box {
  Shape global;  ///< shape of the whole
  Shape offset;  ///< where this box begins
  Shape shape;   ///< its size
};

/// Of a tensor of shape `global`, [first, first + count) along one axis and all along the others.
inline Box slab(const Shape& global, std::size_t axis, i64 first, i64 count) {
  Box box{global, Shape(global.size(), 0), global};
  box.offset[axis] = first;
  box.shape[axis] = count;
  return box;
}

struct Param {
  std::string name;  ///< Megatron's, global: "decoder.layers.3.mlp.linear_fc1.weight"
  Box box;
  Init init = Init::Normal;
  double init_std = 0.02;  ///< for Init::Normal

  Placement placement;  ///< who else holds it

  /// The linear maps between hidden vectors that are fused in the global tensor, for optimizers that treat each as a
  /// matrix: boxes of which all axes but the last are rows. Empty for biases, norms, embeddings, the output layer and
  /// routers.
  std::vector<Box> matrices;

  Tensor value;      ///< box.shape, in the model's type
  Tensor main_grad;  ///< box.shape, fp32 (fp64 in an fp64 model)

  /// A parameter held whole.
  Param(std::string param_name, const Shape& shape, Init how, double std = 0.02)
      : Param(std::move(param_name), Box{shape, Shape(shape.size(), 0), shape}, how, std) {}
  Param(std::string param_name, Box where, Init how, double std = 0.02)
      : name(std::move(param_name)), box(std::move(where)), init(how), init_std(std) {}

  i64 numel() const { return mcpp::numel(box.shape); }

  /// After this the next gradient overwrites main_grad instead of adding to it: cheaper than filling with zeros.
  void clear_grad() { grad_is_clear_ = true; }
  /// Adds a contribution to main_grad: f(main_grad, beta) makes it beta main_grad + contribution, with beta 0 for the
  /// first after clear_grad(), then 1.
  template <class F>
  void add_grad(F&& f) {
    f(main_grad, std::exchange(grad_is_clear_, false) ? 0.0f : 1.0f);
  }
  bool has_grad() const { return !grad_is_clear_; }

 private:
  bool grad_is_clear_ = true;
};

using ParamVisitor = std::function<void(Param&)>;

/// Fills `values`, elements [first, first + values.numel()) of the parameter's box, with initial numbers drawn by name
/// and global element index: the same at every layout. Of param only name, box and init are used.
void initialize(const Param& param, u64 seed, i64 first, Tensor& values);
/// All of param.value.
void initialize(Param& param, u64 seed);

}  // namespace mcpp
