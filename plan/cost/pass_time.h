// Breakdown of the time of a microbatch's passes, in seconds.
#pragma once

namespace mcpp {

/// Time of one pass.
struct PassTime {
  double products = 0, attention = 0, elementwise = 0;
  /// Exposed communication.
  double tensor_parallel = 0, context_parallel = 0, expert_parallel = 0, data_parallel = 0;

  double offloaded = 0;  ///< waiting for activations and weights that are offloaded to host memory or disk

  double communication() const { return tensor_parallel + context_parallel + expert_parallel + data_parallel; }
  double computing() const { return products + attention + elementwise; }
  double total() const { return computing() + communication() + offloaded; }
  PassTime& operator+=(const PassTime& other);
  PassTime operator*(double factor) const;
};

struct UnitTime {
  PassTime forward, backward_input, backward_weight;

  PassTime total() const;
  UnitTime& operator+=(const UnitTime& other);
  UnitTime operator*(double factor) const;
};

/// Returns `layer` with its whole forward pass recomputed, which is added to backward_input.
UnitTime recomputed(const UnitTime& layer);

}  // namespace mcpp
