#include "parallel/tp/amax_history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "tensor/ops/low_precision/fp8.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

Tensor zero_magnitudes(Shape shape, Device& device) {
  return Tensor::zeros(std::move(shape), DType::F32, device, MemoryClass::Other);
}

}  // namespace

Tensor AmaxHistory::scaling_amax(ScaledTensor tensor) const {
  MCPP_CHECK(has_scale(tensor), "the history of a tensor in fp8 has no values");
  return scaling_.flat(static_cast<i64>(tensor), 1);
}

void AmaxHistory::record(ScaledTensor tensor, const Tensor& part) {
  Tensor amax = current_.flat(static_cast<i64>(tensor), 1);
  ops::add_amax(part, amax);
}

void AmaxHistory::record_weight(const std::vector<Tensor>& parts) {
  if (std::exchange(has_weight_, true)) return;
  for (const Tensor& part : parts) record(ScaledTensor::Weight, part);
}

void AmaxHistories::allocate(Device& device) {
  const auto layers = std::ssize(histories_);
  current_ = zero_magnitudes({layers, kScaledTensors}, device);
  scaling_ = zero_magnitudes({layers, kScaledTensors}, device);
  values_ = zero_magnitudes({layers, kScaledTensors, settings_.amax_history_len}, device);
  i64 row = 0;
  for (auto& [module, history] : histories_) {
    history.current_ = current_.flat(row, kScaledTensors);
    history.scaling_ = scaling_.flat(row, kScaledTensors);
    row += kScaledTensors;
  }
}

void AmaxHistories::begin_step() {
  ops::fill_zero(current_);
  for (auto& [module, history] : histories_) history.has_weight_ = false;
}

void AmaxHistories::end_step(std::span<Communicator* const> groups) {
  for (Communicator* group : groups) group->all_reduce(current_, ReduceOp::Max).wait();
  // No scale can be derived from an infinite magnitude, which would turn later values into NaN.
  HostValues<float> values(values_);
  auto row = values.begin();
  for (const float amax : read_values<float>(current_)) {
    std::shift_right(row, row + settings_.amax_history_len, 1);
    *row = std::isfinite(amax) ? amax : 0;
    row += settings_.amax_history_len;
  }
  values.write_back();
}

float AmaxHistories::scaling_amax(std::span<const float> values) const {
  const float amax = settings_.amax_compute_algo == AmaxComputeAlgo::Max ? std::ranges::max(values) : values[0];
  return std::min(std::ldexp(amax, static_cast<int>(settings_.margin)), std::numeric_limits<float>::max());
}

void AmaxHistories::update_scales() {
  const HostValues<float> values(values_);
  HostValues<float> scaling(scaling_);
  const auto length = static_cast<std::size_t>(settings_.amax_history_len);
  std::size_t next = 0;
  for (auto& [module, history] : histories_) {
    for (bool& has_scale : history.has_scale_) {
      scaling[next] = scaling_amax(std::span<const float>(values.begin(), values.end()).subspan(next * length, length));
      has_scale = scaling[next++] > 0;
    }
  }
  scaling.write_back();
}

void AmaxHistories::visit(const std::function<void(const std::string&, const Tensor&)>& f) const {
  const Shape shape{kScaledTensors, settings_.amax_history_len};
  i64 first = 0;
  for (const auto& [module, history] : histories_) {
    f(module, values_.flat(first, numel(shape)).view(shape));
    first += numel(shape);
  }
}

}  // namespace mcpp
