#include "plan/cost/pass_time.h"

namespace mcpp {

PassTime& PassTime::operator+=(const PassTime& other) {
  products += other.products;
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
  return {.products = factor * products,
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

UnitTime recomputed(const UnitTime& layer) {
  UnitTime t = layer;
  t.backward_input += layer.forward;
  return t;
}

}  // namespace mcpp
