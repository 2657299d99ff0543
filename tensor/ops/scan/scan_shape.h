// Sizes of recurrent mixers: Gated DeltaNet (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024) and Mamba-2 (Dao,
// Gu, "Transformers are SSMs", 2024). Their heads keep a state S [key_dim, value_dim] instead of keys and values.
//
// Channels are stored by group: a group has one query and one key, shared by its heads, and one value per head. A
// projection row [groups, width] begins in each group with the channels of the convolution, q | k | v of each head,
// followed by the channels of the output gate and the gates of the recurrence.
#pragma once
#include <compare>

#include "base/types.h"

namespace mcpp {

/// Recurrence of a head, for tokens with query q, key k and value v, decay exp(g) and step b:
///   DeltaRule:  S = exp(g) S; S += b k (v - S^T k)^T; y = S^T q, with q = l2norm(q) / sqrt(key_dim), k = l2norm(k),
///               b = step_scale() sigmoid(beta), g = -exp(a_log) softplus(alpha + dt_bias)
///   StateSpace: S = exp(g) S + b k v^T; y = S^T q + skip v, with b = softplus(dt + dt_bias), g = -exp(a_log) b
enum class ScanRule : u8 { DeltaRule, StateSpace };

/// Sizes of a recurrent mixer on one rank.
struct ScanShape {
  ScanRule rule = ScanRule::DeltaRule;
  i64 groups = 0, heads_per_group = 0, key_dim = 0, value_dim = 0;
  bool allows_neg_eigval = false;  ///< DeltaRule: steps up to 2, at which S loses its part in the direction of k twice

  constexpr i64 heads() const { return groups * heads_per_group; }
  /// Returns the channels per group of q, k and v, of the output gate, of the recurrence's gates (beta and alpha of
  /// each head, or dt), and of all of them.
  constexpr i64 conv_width() const { return 2 * key_dim + heads_per_group * value_dim; }
  constexpr i64 gate_width() const { return heads_per_group * value_dim; }
  constexpr i64 decay_width() const { return heads_per_group * (rule == ScanRule::DeltaRule ? 2 : 1); }
  /// Returns the limit of the step b of DeltaRule.
  constexpr int step_scale() const { return allows_neg_eigval ? 2 : 1; }
  constexpr i64 width() const { return conv_width() + gate_width() + decay_width(); }
  auto operator<=>(const ScanShape&) const = default;
};

}  // namespace mcpp
