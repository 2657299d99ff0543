// Exchange of positions for channels between all context-parallel ranks, for layers that process the positions of a
// sample one after the other.
#pragma once
#include <memory>

#include "parallel/cp/context_parallel.h"

namespace mcpp {

/// All-to-all between the positions that a rank holds (SamplePartition) and equal parts of the channels of all
/// positions, in ascending order. First the ranks of a ring member exchange, then the members of the ring.
class SequenceExchange {
 public:
  explicit SequenceExchange(const ContextParallel& cp);

  /// Returns the index of this rank's part of the channels, out of as many parts as there are ranks.
  i64 part() const;
  /// Exchanges x [s / ranks, b, n] to [s, b, n / ranks]. Returns x if there is only one rank.
  Tensor to_sequence(const Tensor& x, const SamplePartition* partition);
  /// Inverse of to_sequence().
  Tensor to_positions(const Tensor& x, const SamplePartition* partition);

 private:
  Tensor gather_ring(const Tensor& x, const SamplePartition& partition);
  Tensor scatter_ring(const Tensor& x, const SamplePartition& partition);

  ContextParallel cp_;
  std::unique_ptr<HeadExchange> heads_;  // null without an exchange inside ring members
};

}  // namespace mcpp
