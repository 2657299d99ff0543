// Seconds of the passes of a microbatch, by what they are spent on.
#pragma once

namespace mcpp {

/// Of one pass.
struct PassTime {
  double products = 0, attention = 0, elementwise = 0;
  /// Communication that nothing hides.
  double tensor_parallel = 0, context_parallel = 0, expert_parallel = 0, data_parallel = 0;

  double elsewhere = 0;  ///< waiting for activations and weights that are in host memory or on a disk

  double communication() const { return tensor_parallel + context_parallel + expert_parallel + data_parallel; }
  double computing() const { return products + attention + elementwise; }
  double total() const { return computing() + communication() + elsewhere; }
  PassTime& operator+=(const PassTime& other);
  PassTime operator*(double factor) const;
};

struct UnitTime {
  PassTime forward, backward_input, backward_weight;

  PassTime total() const;
  UnitTime& operator+=(const UnitTime& other);
  UnitTime operator*(double factor) const;
};

/// The same with all of it computed again in backward, which is part of backward_input.
UnitTime recomputed(const UnitTime& layer);

}  // namespace mcpp
