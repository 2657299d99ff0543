#include "plan/cost/rank_cost_model.h"

#include "base/integer_math.h"

namespace mcpp {

PassTime& PassTime::operator+=(const PassTime& other) {
  gemms += other.gemms;
  attention += other.attention;
  elementwise += other.elementwise;
  tensor_parallel += other.tensor_parallel;
  context_parallel += other.context_parallel;
  expert_parallel += other.expert_parallel;
  data_parallel += other.data_parallel;
  offloaded += other.offloaded;
  return *this;
}

PassTime PassTime::operator*(double factor) const {
  return {.gemms = factor * gemms,
          .attention = factor * attention,
          .elementwise = factor * elementwise,
          .tensor_parallel = factor * tensor_parallel,
          .context_parallel = factor * context_parallel,
          .expert_parallel = factor * expert_parallel,
          .data_parallel = factor * data_parallel,
          .offloaded = factor * offloaded};
}

PassTime UnitTime::total() const {
  PassTime sum = forward;
  sum += backward_input;
  sum += backward_weight;
  return sum;
}

UnitTime& UnitTime::operator+=(const UnitTime& other) {
  forward += other.forward;
  backward_input += other.backward_input;
  backward_weight += other.backward_weight;
  return *this;
}

UnitTime UnitTime::operator*(double factor) const {
  return {.forward = forward * factor,
          .backward_input = backward_input * factor,
          .backward_weight = backward_weight * factor};
}

UnitTime add_full_recompute(const UnitTime& layer) {
  UnitTime t = layer;
  t.backward_input += layer.forward;
  return t;
}

RankCostModel::RankCostModel(const PredictionInput& input)
    : input_(input),
      collectives_(input.hardware),
      kernels_(kernel_times(input.hardware, input.program, input.work)),
      slowdown_(input.hardware.slowest_device_factor(input.layout.world_size())),
      element_bytes_(real(size_of(input.work.dtype))),
      tokens_(input.work.model.seq_length / input.layout.cp * input.layout.micro_batch_size) {}

double RankCostModel::unsharded_bytes() const {
  return real(tokens_ * model().hidden_size) * element_bytes_;
}

double RankCostModel::stream_elements() const {
  return real(tokens_ * model().hidden_size) / (layout().sequence_parallel ? real(layout().tp) : 1);
}

double RankCostModel::seconds(double kernel_seconds, double kernels) const {
  return slowdown_ * (kernel_seconds + kernels * input_.hardware.gap_seconds());
}

double RankCostModel::traffic_seconds(double elements, double kernels) const {
  return seconds(input_.hardware.traffic_seconds(elements * element_bytes_), kernels);
}

double RankCostModel::gemm_seconds(GemmType type, const MatmulShape& shape, double output_bytes, GemmPass pass) const {
  return slowdown_ * mcpp::gemm_seconds(input_.hardware, type, shape, output_bytes, pass);
}

}  // namespace mcpp
