// Sizes of recurrent mixers: Gated DeltaNet (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024) and Mamba-2 (Dao,
// Gu, "Transformers are SSMs", 2024). Each head has a state S [key_dim, value_dim] instead of a cache of keys and
// values.
//
// Channels are stored by group. A group has one query and one key, which its heads share, and one value per head. For
// each group, a row of the projection [groups, width] holds the channels of the convolution (q | k | v of each head),
// the channels of the output gate, and the gates of the recurrence.
#pragma once
#include <compare>

#include "base/types.h"

namespace mcpp {

/// Recurrence of a head for a token with query q, key k, value v, decay exp(g) and step b:
///   DeltaRule:  S = exp(g) S; S += b k (v - S^T k)^T; y = S^T q, with q = l2norm(q) / sqrt(key_dim), k = l2norm(k),
///               b = step_scale() sigmoid(beta), g = -exp(a_log) softplus(alpha + dt_bias)
///   StateSpace: S = exp(g) S + b k v^T; y = S^T q + skip v, with b = softplus(dt + dt_bias), g = -exp(a_log) b
enum class ScanRule : u8 { DeltaRule, StateSpace };

/// Sizes of a recurrent mixer on one rank.
struct ScanShape {
  ScanRule rule = ScanRule::DeltaRule;
  i64 groups = 0, heads_per_group = 0, key_dim = 0, value_dim = 0;
  bool allows_neg_eigval =
      false;  ///< DeltaRule: b is in (0, 2), which allows negative eigenvalues of the transition of S

  constexpr i64 heads() const { return groups * heads_per_group; }
  /// These functions return numbers of channels per group: of q, k and v; of the output gate; of the gates of the
  /// recurrence (beta and alpha of each head, or dt); and in total.
  constexpr i64 conv_width() const { return 2 * key_dim + heads_per_group * value_dim; }
  constexpr i64 gate_width() const { return heads_per_group * value_dim; }
  constexpr i64 decay_width() const { return heads_per_group * (rule == ScanRule::DeltaRule ? 2 : 1); }
  /// Returns the upper limit of b with DeltaRule.
  constexpr int step_scale() const { return allows_neg_eigval ? 2 : 1; }
  constexpr i64 width() const { return conv_width() + gate_width() + decay_width(); }
  auto operator<=>(const ScanShape&) const = default;
};

}  // namespace mcpp
