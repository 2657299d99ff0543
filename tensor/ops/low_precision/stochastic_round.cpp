#include "tensor/ops/low_precision/stochastic_round.h"

#include "tensor/on_device.h"

namespace mcpp {

StochasticRows stochastic_rows(const StochasticElements& elements) {
  StochasticRows rows;
  if (elements.shape.empty()) return rows;
  rows.width = elements.shape.back(), rows.first_column = elements.offset.back();
  for (std::size_t axis = elements.shape.size() - 1; axis-- > 0;) {
    const auto a = static_cast<std::size_t>(rows.axes++);
    rows.global[a] = elements.global[axis], rows.offset[a] = elements.offset[axis],
    rows.shape[a] = elements.shape[axis];
  }
  return rows;
}

namespace ops {

void stochastic_round(const Tensor& x, const StochasticElements& elements, Tensor& y) {
  const std::size_t axes = elements.shape.size();
  MCPP_CHECK(x.dtype() == DType::F32 && y.dtype() == DType::BF16 && x.numel() == y.numel(),
             "stochastic_round: ", x.numel(), " values of ", name_of(x.dtype()), " to ", y.numel(), " of ",
             name_of(y.dtype()));
  MCPP_CHECK(axes <= kMaxStochasticAxes && elements.global.size() == axes && elements.offset.size() == axes,
             "stochastic_round: a box with ", axes, " axes");
  MCPP_CHECK(elements.first >= 0 && elements.first + x.numel() <= numel(elements.shape), "stochastic_round: elements ",
             elements.first, " to ", elements.first + x.numel(), " of a box of shape ", elements.shape);
  if (x.numel() == 0) return;
  on_device(x, [&]<DeviceType D>() { StochasticRoundKernels<D>::stochastic_round(x, elements, y); });
}

}  // namespace ops
}  // namespace mcpp
