// Partition of sequence positions over the ranks of a context-parallel group. Layers other than attention treat a
// rank's positions as a separate sequence.
#pragma once
#include <algorithm>
#include <compare>
#include <span>
#include <vector>

#include "tensor/ops/positions.h"

namespace mcpp {

/// Structure of a context-parallel group. Rank ring * heads + i, with i < heads, belongs to member `ring` of the ring.
/// The ranks of a member share the same chunks of the sequence: each rank holds an equal part of every chunk, and the
/// ranks exchange positions for heads before attention.
struct SequencePartition {
  i64 heads = 1;  ///< ranks that exchange heads
  i64 rings = 1;  ///< members of the ring

  i64 ranks() const { return heads * rings; }
  auto operator<=>(const SequencePartition&) const = default;
};

/// Partition of the samples of one microbatch into equal chunks. Each ring member has the same number of chunks, in
/// ascending order. All ranks compute the same partition.
class SamplePartition {
 public:
  /// Assigns each member chunk i from the front and chunk i from the back, which balances causal attention over samples
  /// of one document ("zigzag"; Llama 3, Megatron-LM).
  static SamplePartition zigzag(const SequencePartition& ranks, i64 seq_length);
  /// `chunks` lists the chunk indices of member 0, then of member 1, and so on. first_keys[i] is the first position
  /// visible to any query of chunk i; empty = 0.
  SamplePartition(const SequencePartition& ranks, i64 seq_length, std::vector<i64> chunks,
                  std::vector<i64> first_keys = {});

  i64 runs() const { return static_cast<i64>(chunks_.size()) / ranks_.rings; }  ///< chunks per member
  i64 chunk() const { return seq_length_ / static_cast<i64>(chunks_.size()); }  ///< rows per chunk
  std::span<const i64> chunks_of(i64 member) const;
  /// Returns true if each member has one chunk, in order.
  bool is_consecutive() const { return runs() == 1 && std::ranges::is_sorted(chunks_); }
  /// Returns the positions of the rows of a rank.
  PositionRanges rank_positions(i64 rank) const;
  /// Returns the positions of all rows of a ring member.
  PositionRanges member_positions(i64 member) const { return positions(member, 0, chunk()); }

  /// Returns true if a query of member `queries` sees a key of member `keys` in a layer with this window (0 = none).
  bool sees(i64 queries, i64 keys, i64 window) const;
  /// Returns the number of hops around the ring after which the keys of a member have reached every member whose
  /// queries see any of them.
  i64 reach(i64 keys, i64 window) const;

 private:
  PositionRanges positions(i64 member, i64 offset, i64 rows) const;

  SequencePartition ranks_;
  i64 seq_length_;
  std::vector<i64> chunks_, first_keys_;
};

/// Copies the rows of `full` [s, ...] at the `positions`: [rows, ...].
Tensor select_rows(const Tensor& full, const PositionRanges& positions, i64 rows);

// Load balancing of attention over the context-parallel ranks for samples packed from documents.

/// Limits of the keys that a query of a layer sees.
struct KeyLimits {
  i64 window = 0;  ///< number of most recent positions that the query sees, including its own; 0 = all
  i64 chunk = 0;   ///< the query sees only its chunk, one of the chunks of this size of its document; 0 = no chunks

  auto operator<=>(const KeyLimits&) const = default;
};

/// Parameters that determine the attention cost of a microbatch.
struct AttentionWork {
  i64 seq_length = 0, batch = 1;
  std::vector<i32> starts = {};        ///< [s, b]: first position of each token's document; empty = 0
  std::vector<KeyLimits> layers = {};  ///< limits of each layer with attention; empty = one layer without limits
};

/// Returns the first of the following partitions whose maximum load is at most 1 % above the mean, or else the one with
/// the smallest maximum load: one chunk of consecutive positions per member, which needs few remote keys for short
/// documents and windows; then 2 (zigzag for samples of one document), 4, 8 and 16 chunks per member, assigned by cost.
/// With more than 2 chunks per member, a chunk is at least as long as a tile of scores.
SamplePartition balance_sequence_partition(const SequencePartition& ranks, const AttentionWork& work);

/// Returns the cost of each ring member in scores: the scores visible to its queries, plus one tile width per query for
/// masked scores that are computed anyway.
std::vector<i64> member_costs(const SequencePartition& ranks, const AttentionWork& work,
                              const SamplePartition& partition);

}  // namespace mcpp
