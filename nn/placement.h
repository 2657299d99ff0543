// Placement of a parameter along each axis of the rank grid, in the terms of PyTorch's DTensor. It is specified once,
// when the parameter is created. It determines the buffer of the parameter, the ranks over which ZeRO shards that
// buffer (parallel/dp/zero.h), the ranks over which the gradient is summed (parallel/partial_gradients.h), and the rank
// that counts the parameter in norms and saves it (ParallelState::is_primary_replica).
#pragma once
#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "base/types.h"

namespace mcpp {

/// Tensor, context, expert, data and pipeline parallelism, fastest varying first.
enum class Axis : u8 { Tp, Cp, Ep, Dp, Pp };
inline constexpr int kAxes = 5;
/// Returns "tp", "cp", "ep", "dp" or "pp".
std::string_view name_of(Axis axis);

/// One value per axis: the sizes of a grid, or the coordinates of a rank.
struct AxisValues {
  int tp = 1, cp = 1, ep = 1, dp = 1, pp = 1;

  int operator[](Axis axis) const { return std::array{tp, cp, ep, dp, pp}[static_cast<std::size_t>(axis)]; }
  bool operator==(const AxisValues&) const = default;
};

/// Grid of ranks (parallel/topology.h): one for the dense layers and one for the experts. Each covers all ranks.
enum class GridKind : u8 { Dense, Expert };

enum class Spread : u8 {
  Shard,      ///< each rank has a different slice
  Replicate,  ///< ranks hold the same box and compute the same gradient
  Partial,    ///< ranks hold the same box and compute partial gradients, which must be summed
};
/// Returns "Shard", "Replicate" or "Partial".
std::string_view name_of(Spread spread);

/// Coordinates first, first + stride, ... along an axis.
struct Holders {
  int first = 0, count = 1, stride = 1;
  bool operator==(const Holders&) const = default;
};

/// Placement of a parameter along one axis.
struct AxisPlacement {
  Spread spread = Spread::Shard;
  /// Ranks that hold the same box as this rank (Replicate and Partial); empty = all ranks along the axis.
  std::optional<Holders> holders = {};

  bool is_unsharded() const { return spread != Spread::Shard; }
  /// Returns the number of ranks along an axis of `size` that hold the same box.
  int copies(int size) const { return !is_unsharded() ? 1 : holders ? holders->count : size; }
  /// Returns true if the rank at `coordinate` is the first of the ranks that hold the same box.
  bool is_first(int coordinate) const { return !is_unsharded() || coordinate == (holders ? holders->first : 0); }
  bool operator==(const AxisPlacement&) const = default;
};

/// Placement of a parameter. The default is for a weight of the dense layers that is sharded along tp. Ranks along cp
/// and dp process different positions and samples, so each has a partial gradient.
struct Placement {
  GridKind grid = GridKind::Dense;
  AxisPlacement tp = {}, cp = {Spread::Partial}, ep = {}, dp = {Spread::Partial}, pp = {};

  const AxisPlacement& operator[](Axis axis) const {
    return *std::array{&tp, &cp, &ep, &dp, &pp}[static_cast<std::size_t>(axis)];
  }
  /// Returns true if the rank at coordinates `me`, among the tp, ep and pp ranks with the same box, counts the box in
  /// norms and checkpoints. Ranks along cp and dp are not considered, because they divide this work by ZeRO shards or
  /// evenly.
  bool is_primary_replica(const AxisValues& me) const {
    return tp.is_first(me.tp) && ep.is_first(me.ep) && pp.is_first(me.pp);
  }
};

/// Placement of an activation [s, b, n] over the tensor-parallel ranks between two modules.
enum class ActivationPlacement : u8 {
  Replicated,       ///< each rank has all of it
  SequenceSharded,  ///< sharded along s: each rank has some of the positions
  ColumnSharded,    ///< sharded along n: each rank has some of the heads, of the MLP width or of the vocabulary
  Partial,          ///< each rank has a term of the sum
};
/// Returns "replicated", "sequence-sharded", "column-sharded" or "partial".
std::string_view name_of(ActivationPlacement placement);

/// Returns the spread of the gradient of a parameter over the ranks that use it to compute `y`: Replicate if all have
/// the same dy, Partial if each has a different part.
Spread gradient_spread(ActivationPlacement y);

struct Param;
/// Sizes of the dense and the expert grid.
struct GridSizes {
  AxisValues dense = {}, expert = {};
  const AxisValues& operator[](GridKind grid) const { return grid == GridKind::Dense ? dense : expert; }
};
/// Throws if the boxes of a model's parameters, multiplied by the number of shards that their placement along tp and ep
/// implies, do not add up to the global tensors. An example is a replicated bias with the placement Shard.
void check_boxes(std::span<const Param* const> params, const GridSizes& grids);
/// Throws if the placement of a parameter along tp contradicts gradient_spread(y).
void check_gradient_spread(const Param& param, ActivationPlacement y);

}  // namespace mcpp
