#include "nn/placement.h"

#include <map>
#include <string>

#include "nn/param.h"

namespace mcpp {

std::string_view name_of(Axis axis) {
  return std::array<std::string_view, kAxes>{"tp", "cp", "ep", "dp", "pp"}[static_cast<std::size_t>(axis)];
}

std::string_view name_of(Spread spread) {
  return std::array<std::string_view, 3>{"Shard", "Replicate", "Partial"}[static_cast<std::size_t>(spread)];
}

std::string_view name_of(ActivationPlacement placement) {
  static constexpr std::array<std::string_view, 4> kNames{"replicated", "sequence-sharded", "column-sharded",
                                                          "partial"};
  return kNames[static_cast<std::size_t>(placement)];
}

Spread gradient_spread(ActivationPlacement y) {
  // The gradient of a sum equals the gradient of each of its terms.
  const bool is_sharded = y == ActivationPlacement::SequenceSharded || y == ActivationPlacement::ColumnSharded;
  return is_sharded ? Spread::Partial : Spread::Replicate;
}

void check_boxes(std::span<const Param* const> params, const GridSizes& grids) {
  std::map<std::string, i64> elements;
  for (const Param* param : params) {
    i64 boxes = 1;
    for (const Axis axis : {Axis::Tp, Axis::Ep}) {
      const int size = grids[param->placement.grid][axis], copies = param->placement[axis].copies(size);
      MCPP_CHECK(copies > 0 && size % copies == 0, param->name, " is replicated on ", copies, " of ", size,
                 " ranks along ", name_of(axis));
      boxes *= size / copies;
    }
    elements[param->name] += param->numel() * boxes;
  }
  for (const Param* param : params) {
    const Placement& placement = param->placement;
    const AxisValues& sizes = grids[placement.grid];
    MCPP_CHECK(elements[param->name] == numel(param->box.global), param->name, " is placed ",
               name_of(placement.tp.spread), " along tp and ", name_of(placement.ep.spread),
               " along ep, so that its boxes on ", sizes.tp, " x ", sizes.ep, " ranks make up ", elements[param->name],
               " elements, but it has ", numel(param->box.global));
  }
}

void check_gradient_spread(const Param& param, ActivationPlacement y) {
  const Spread spread = param.placement.tp.spread;
  MCPP_CHECK(spread == Spread::Shard || spread == gradient_spread(y), param.name, " is placed ", name_of(spread),
             " along tp, but is used for activations that are ", name_of(y), ", which makes its gradient ",
             name_of(gradient_spread(y)));
}

}  // namespace mcpp
