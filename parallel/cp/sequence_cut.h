// Which positions of its samples the ranks of a context-parallel group hold. Everything that attention does not concern
// works on them as if they were a sequence of their own.
#pragma once
#include <algorithm>
#include <compare>
#include <span>
#include <vector>

#include "tensor/ops/positions.h"

namespace mcpp {

/// The ranks of a context-parallel group. Number ring * heads + i, i below `heads`, are member `ring` of the ring:
/// together they hold pieces of the sequence, each an equal part of every one of them, and exchange positions for heads
/// when attention begins.
struct SequenceCut {
  i64 heads = 1;  ///< ranks that exchange heads
  i64 rings = 1;  ///< members of the ring

  i64 ranks() const { return heads * rings; }
  auto operator<=>(const SequenceCut&) const = default;
};

/// How the samples of one microbatch are cut: into equal pieces, of which each member of the ring has as many, in
/// ascending order. A value that all ranks compute alike.
class SampleCut {
 public:
  /// Members have one piece from the front and the one as far from the back, so that causal attention over samples of
  /// one document costs each the same ("zigzag"; Llama 3, Megatron-LM).
  static SampleCut zigzag(const SequenceCut& ranks, i64 seq_length);
  /// pieces: numbers of those of member 0, then of member 1, and so on. first_keys: of each piece of the sequence, the
  /// first position that any of its queries may see; empty = 0.
  SampleCut(const SequenceCut& ranks, i64 seq_length, std::vector<i64> pieces, std::vector<i64> first_keys = {});

  i64 runs() const { return static_cast<i64>(pieces_.size()) / ranks_.rings; }  ///< pieces that each member has
  i64 piece() const { return seq_length_ / static_cast<i64>(pieces_.size()); }  ///< rows of each
  std::span<const i64> pieces_of(i64 member) const;
  /// Members have one piece each, in their order.
  bool is_consecutive() const { return runs() == 1 && std::ranges::is_sorted(pieces_); }
  /// The positions of a rank's rows, and those that its member of the ring has together.
  PositionRanges of_rank(i64 rank) const;
  PositionRanges of_member(i64 member) const { return positions(member, 0, piece()); }

  /// Whether a query of one member may see a key of another, in a layer with this window (0 = none).
  bool sees(i64 queries, i64 keys, i64 window) const;
  /// How far the keys of a member have to travel round the ring, in hops, until all have met them that see some.
  i64 reach(i64 keys, i64 window) const;

 private:
  PositionRanges positions(i64 member, i64 inside, i64 rows) const;

  SequenceCut ranks_;
  i64 seq_length_;
  std::vector<i64> pieces_, first_keys_;
};

/// The rows of `whole` [s, ...], of the whole sequence, that stand at `at`: [rows, ...], copied.
Tensor rows_at(const Tensor& whole, const PositionRanges& at, i64 rows);

}  // namespace mcpp
