// What the ranks along each axis of their grid hold of a parameter, in the words of device meshes (PyTorch's DTensor).
// Said once, where the parameter is made; from it follow the buffer that it lies in and the ranks over which ZeRO cuts
// that (parallel/dp/model_memory.h), over whom its gradient is summed (parallel/partial_gradients.h), and which rank
// counts it in the norm and saves it (ParallelState::stands_for_holders).
#pragma once
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// Tensor, context, expert, data and pipeline parallelism, fastest first.
enum class Axis : u8 { Tp, Cp, Ep, Dp, Pp };
inline constexpr int kAxes = 5;
/// "tp", "cp", "ep", "dp", "pp".
std::string_view name_of(Axis axis);

/// One number per axis: sizes of a grid, or the place of a rank in it.
struct AxisValues {
  int tp = 1, cp = 1, ep = 1, dp = 1, pp = 1;

  int operator[](Axis axis) const { return std::array{tp, cp, ep, dp, pp}[static_cast<std::size_t>(axis)]; }
  bool operator==(const AxisValues&) const = default;
};

/// All ranks make two grids (parallel/topology.h): that of the dense layers, and that of the experts.
enum class GridKind : u8 { Dense, Expert };

enum class Spread : u8 {
  Shard,      ///< each rank has a slice of its own
  Replicate,  ///< ranks hold the same box, and each computes the same gradient
  Partial,    ///< ranks hold the same box, and each computes a part of a sum, the gradient
};
/// "Shard", "Replicate", "Partial".
std::string_view name_of(Spread spread);

/// The coordinates first, first + stride, ... of an axis.
struct Holders {
  int first = 0, count = 1, stride = 1;
  bool operator==(const Holders&) const = default;
};

struct AlongAxis {
  Spread spread = Spread::Shard;
  /// With Replicate and Partial: who holds the same box as this rank; nothing = all along the axis.
  std::optional<Holders> holders = {};

  bool is_held_alike() const { return spread != Spread::Shard; }
  /// How many hold the same box, on an axis of `size`.
  int copies(int size) const { return !is_held_alike() ? 1 : holders ? holders->count : size; }
  /// Whether the rank at `coordinate` is the first of them.
  bool is_first(int coordinate) const { return !is_held_alike() || coordinate == (holders ? holders->first : 0); }
  bool operator==(const AlongAxis&) const = default;
};

/// As made, that of a weight of the dense layers with a slice on each tensor-parallel rank. Its ranks along cp and dp
/// see other positions and samples, so that each has a part of its gradient.
struct Placement {
  GridKind grid = GridKind::Dense;
  AlongAxis tp = {}, cp = {Spread::Partial}, ep = {}, dp = {Spread::Partial}, pp = {};

  const AlongAxis& operator[](Axis axis) const {
    return *std::array{&tp, &cp, &ep, &dp, &pp}[static_cast<std::size_t>(axis)];
  }
  /// Whether the rank at `me` of the grid stands for all that hold the same box, where each number must come up once:
  /// in norms and checkpoints. Those along cp and dp are no matter of this: they share the work, by ZeRO or evenly.
  bool stands_for_holders(const AxisValues& me) const {
    return tp.is_first(me.tp) && ep.is_first(me.ep) && pp.is_first(me.pp);
  }
};

/// How an activation [s, b, n] lies over the tensor-parallel ranks between two modules.
enum class ActivationPlacement : u8 {
  Whole,     ///< Replicate: each has all of it
  Sequence,  ///< Shard of s: each has the positions of its part of the sequence
  Columns,   ///< Shard of n: each has its heads, or its part of the width or the vocabulary
  Sum,       ///< Partial: each has a part of the sum
};
/// "whole", "cut along the sequence", "cut by columns", "a part of a sum".
std::string_view name_of(ActivationPlacement placement);

/// What the ranks that hold a parameter alike and use it to make `y` compute of its gradient: all the same where they
/// see the same dy, parts of the sum where each has its own.
Spread gradient_spread(ActivationPlacement y);

struct Param;
/// Sizes of both grids, of which a model's boxes are cut along tp and ep.
struct GridSizes {
  AxisValues dense = {}, expert = {};
  const AxisValues& operator[](GridKind grid) const { return grid == GridKind::Dense ? dense : expert; }
};
/// Refuses parameters of a model whose boxes, each as often as its placement along tp and ep says, do not make up their
/// global tensors: of a bias that every rank holds whole, placed as if each had a slice.
void check_boxes(std::span<const Param* const> params, const GridSizes& grids);
/// Refuses a parameter whose placement along tp contradicts gradient_spread(y).
void check_gradient_spread(const Param& param, ActivationPlacement y);

}  // namespace mcpp
