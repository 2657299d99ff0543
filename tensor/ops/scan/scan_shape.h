// Sizes of recurrent mixers: Gated DeltaNet (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024), Mamba-2 (Dao, Gu,
// "Transformers are SSMs", 2024) and Kimi Delta Attention (Kimi Team, "Kimi Linear", 2025). Each head has a state S
// [key_dim, value_dim] instead of a cache of keys and values.
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
///   ChannelDeltaRule (Kimi Delta Attention): DeltaRule with a decay of each key channel: S = diag(exp(g)) S, where g,
///               alpha and dt_bias have key_dim values
enum class ScanRule : u8 { DeltaRule, StateSpace, ChannelDeltaRule };

/// Sizes of a recurrent mixer on one rank.
struct ScanShape {
  ScanRule rule = ScanRule::DeltaRule;
  i64 groups = 0, heads_per_group = 0, key_dim = 0, value_dim = 0;
  /// DeltaRule, ChannelDeltaRule: b is in (0, 2), which allows negative eigenvalues of the transition of S.
  bool allows_neg_eigval = false;

  constexpr bool is_delta() const { return rule != ScanRule::StateSpace; }
  constexpr bool decays_channels() const { return rule == ScanRule::ChannelDeltaRule; }
  constexpr i64 heads() const { return groups * heads_per_group; }
  /// Returns the number of decays of a head.
  constexpr i64 decays_per_head() const { return decays_channels() ? key_dim : 1; }
  constexpr i64 decays() const { return heads() * decays_per_head(); }
  /// These functions return numbers of channels per group: of q, k and v; of the output gate; of the gates of the
  /// recurrence (beta of each head, then alpha of each head, or dt); and in total.
  constexpr i64 conv_width() const { return 2 * key_dim + heads_per_group * value_dim; }
  constexpr i64 gate_width() const { return heads_per_group * value_dim; }
  constexpr i64 decay_width() const { return heads_per_group * (decays_per_head() + (is_delta() ? 1 : 0)); }
  /// Returns the limit of the step b of a delta rule.
  constexpr int step_scale() const { return allows_neg_eigval ? 2 : 1; }
  constexpr i64 width() const { return conv_width() + gate_width() + decay_width(); }
  auto operator<=>(const ScanShape&) const = default;
};

}  // namespace mcpp
