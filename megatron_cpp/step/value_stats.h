// Statistics of a model's values: norms, zeros and histograms. Each element counts once in any layout.
#pragma once
#include <map>
#include <string>

#include "comm/communicator.h"

namespace mcpp {

/// Statistics of a set of values. Sums are fp64; their order of summation depends on the layout.
struct ValueStats {
  double count = 0, zeros = 0, sum = 0, sum_of_squares = 0;
  double max_abs = 0;  ///< maximum absolute value
  /// Counts by upper limit, four per octave; filled in on request.
  std::map<float, double> buckets = {};

  /// Adds the elements of `values`, which may have any floating-point type. Waits for the device.
  void add(const Tensor& values, bool with_buckets);
  ValueStats& operator+=(const ValueStats& other);
  double norm() const;
};

using StatsByName = std::map<std::string, ValueStats>;

/// Returns the statistics of all ranks combined, on every rank. Collective over `world`.
StatsByName sum_over_ranks(const StatsByName& local, Communicator& world);
/// Returns the statistics of all names combined.
ValueStats total_stats(const StatsByName& stats);
/// Groups by layer: "decoder.layers.3" for all of its parameters, "embedding", "output_layer",
/// "decoder.final_layernorm".
StatsByName group_by_layer(const StatsByName& by_parameter);

}  // namespace mcpp
