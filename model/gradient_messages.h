// What the messages take in which gradients travel that are sent in less (parallel/dp/narrow_reduce.h), and when.
#pragma once
#include "model/whole_units.h"

namespace mcpp {

class GradientMessages {
 public:
  /// `share` and `parameters` live as long.
  GradientMessages(const ActivationSetup& setup, const RankShare& share, const RankParameters& parameters)
      : setup_(setup), share_(share), parameters_(parameters) {}

  /// Bytes at any moment: the largest message, as it is sent and received, and with ZeRO 1 that of the bucket before.
  double most() const;
  /// ZeRO 1 with messages, of the rank's first chunk: the most that they take together with activations, of these
  /// units. A bucket's are made when backward is done with its units, and are there until it is done with those of the
  /// next.
  double most_with(const std::vector<UsedUnits>& used, const std::vector<UnitActivations>& activations) const;

 private:
  bool has_nodes() const { return share_.node_ranks > 1; }
  double bytes(i64 elements) const;
  /// Of a bucket of so many elements, until its sum is started, and from then on.
  double making(i64 elements) const;
  double on_its_way(i64 elements) const;

  ActivationSetup setup_;
  const RankShare& share_;
  const RankParameters& parameters_;
};

}  // namespace mcpp
