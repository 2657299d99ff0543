// Memory of gradient messages in reduced precision (parallel/dp/store.h) over time.
#pragma once
#include "model/unsharded_units.h"

namespace mcpp {

class GradientMessages {
 public:
  /// Keeps references to `share` and `parameters`.
  GradientMessages(const ActivationSetup& setup, const RankMemorySpec& share, const RankParameters& parameters)
      : setup_(setup), share_(share), parameters_(parameters) {}

  /// Returns the peak in bytes: the largest message as sent and received, and with ZeRO 1 also the previous bucket's.
  double max_bytes() const;
  /// ZeRO 1 with messages: returns the peak of messages and activations together, for the rank's first chunk with these
  /// units. A bucket's messages exist from the end of backward of its units to the end of backward of the next
  /// bucket's.
  double peak_bytes_with(const std::vector<UsedUnits>& used, const std::vector<UnitActivations>& activations) const;

 private:
  bool has_nodes() const { return share_.node_ranks > 1; }
  double bytes(i64 elements) const;
  /// Bytes for a bucket of `elements` until its reduction starts, and while it is in flight.
  double packing_bytes(i64 elements) const;
  double in_flight_bytes(i64 elements) const;

  ActivationSetup setup_;
  const RankMemorySpec& share_;
  const RankParameters& parameters_;
};

}  // namespace mcpp
