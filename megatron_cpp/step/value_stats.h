// What a model's numbers look like: norms, zeros and histograms, each number counted once whatever the layout.
#pragma once
#include <map>
#include <string>

#include "comm/communicator.h"

namespace mcpp {

/// Of a set of numbers. Sums are fp64; another layout adds in another order.
struct ValueStats {
  double count = 0, zeros = 0, sum = 0, sum_of_squares = 0;
  double largest = 0;  ///< absolute value
  /// Numbers by an upper limit, four of them in an octave; filled on request.
  std::map<float, double> buckets = {};

  /// Adds the numbers of `values`, of any floating type; waits for the device.
  void add(const Tensor& values, bool with_buckets);
  ValueStats& operator+=(const ValueStats& other);
  double norm() const;
};

using StatsByName = std::map<std::string, ValueStats>;

/// Those of all ranks together, on every rank. Called by all of `world`.
StatsByName sum_over_ranks(const StatsByName& mine, Communicator& world);
/// Of all names together.
ValueStats total_of(const StatsByName& stats);
/// By layer: "decoder.layers.3" for all of its parameters, "embedding", "output_layer", "decoder.final_layernorm".
StatsByName by_layer(const StatsByName& by_parameter);

}  // namespace mcpp
