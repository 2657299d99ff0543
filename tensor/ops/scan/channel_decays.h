// Part of ChunkScan for a decay per key channel (ScanRule::ChannelDeltaRule). Kernels include this file instead of
// chunk_scan.h.
//
// The decays D_ijc = exp(G_ic - G_jc) are part of the products of queries and keys of a head:
//   QK_ij = sum over c of q_ic k_jc D_ijc, KK_ij = sum over c of k_ic k_jc D_ijc
// exp(-G) would overflow where decays are strong, so D cannot be split into a factor of row i and one of row j. As in
// "Gated Linear Attention" (Yang et al., 2024), a chunk consists of blocks of kScanPadding rows. For rows i of a block
// and rows j of earlier blocks, D is the product of two factors of at most 1, the decay since the beginning of the
// block of i and the decay from j to there, and QK is a GEMM of scaled queries and scaled keys. Within a block, D is
// the product of the decays of single rows. Logarithms of decays are only added, so results are accurate for decays of
// any strength, and gradients of g are sums over the decays that contain g, so they do not cancel.
#pragma once
#include "tensor/ops/scan/chunk_scan.h"

namespace mcpp {

/// Loads g and b of a head.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::load_channel_gates(i64 head) {
  const R a = team_.exp(team_.widen(o_.a_log[param(head)])), scale = static_cast<R>(o_.shape.step_scale());
  team_.channel_gates(o_.p + decay_at(t_, head), p_stride(), rows_, key_, o_.dt_bias + param(head) * key_, a,
                      channel_g_, key_ld_, c_);
  team_.each(1, c_, [=, this](i64, i64 i) {
    beta_[i] = i < rows_ ? scale / (R{1} + team_.exp(-team_.widen(o_.p[beta_at(t_ + i, head)]))) : R{0};
  });
}

/// Computes to = x + prefix_ for the rows of a block, and adds the block's sum of g to prefix_.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::add_to_block(const R* x, i64 block, R* to) {
  const i64 first = block * kB * key_ld_;
  team_.each(kB, key_ld_, [=, this](i64 i, i64 j) {
    const i64 at = first + i * key_ld_ + j;
    to[at] = x[at] + prefix_[j];
  });
  team_.each(1, key_ld_, [=, this](i64, i64 j) { prefix_[j] += block_sums_[block * key_ld_ + j]; });
}
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::multiply_elements(const R* a, const R* b, i64 count, R* to) {
  team_.each(1, count, [=](i64, i64 i) { to[i] = a[i] * b[i]; });
}

/// Computes the following decays from g. Each includes the row itself, except for to_end_:
/// - channel_decay_: decay of a single row,
/// - from_begin_ and channel_growth_: decays since the beginning of the block and of the chunk,
/// - to_end_: logarithm of the decay of the later rows of the block.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::load_decays() {
  const i64 ld = key_ld_, last = c_ - 1;
  team_.exps(channel_g_, c_ * ld, channel_decay_);
  team_.each_column(c_, ld, [=, this](i64 i, i64 j) {
    const i64 at = i * ld + j;
    from_begin_[at] = (i % kB == 0 ? R{0} : from_begin_[at - ld]) + channel_g_[at];
    if (i % kB == kB - 1) block_sums_[i / kB * ld + j] = from_begin_[at];
  });
  team_.each_column(c_, ld, [=, this](i64 i, i64 j) {
    const i64 at = (last - i) * ld + j;
    to_end_[at] = i % kB == 0 ? R{0} : to_end_[at + ld] + channel_g_[at + ld];
  });
  clear(prefix_, ld);
  for (i64 block = 0; block < c_ / kB; ++block) add_to_block(from_begin_, block, channel_growth_);
  team_.exps(channel_growth_, c_ * ld, channel_growth_);
  team_.exps(from_begin_, c_ * ld, from_begin_);
}

/// Computes weights_, the product of the decays of rows j + 1 to end - 1 for each row j < `end`, and the keys times
/// these weights. `end` is a multiple of the number of rows of a block.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::weigh_keys(i64 end) {
  clear(prefix_, key_ld_);
  for (i64 block = end / kB - 1; block >= 0; --block) add_to_block(to_end_, block, weights_);
  team_.exps(weights_, end * key_ld_, weights_);
  multiply_elements(weights_, k_, end * key_ld_, decayed_k_);
}

/// Computes QK and KK on and below the diagonal, then the decays to the end of the chunk.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::multiply_with_decays() {
  const i64 ld = key_ld_;
  multiply_elements(from_begin_, q_, c_ * ld, block_q_);
  multiply_elements(from_begin_, k_, c_ * ld, block_k_);
  multiply_elements(channel_growth_, q_, c_ * ld, state_q_);
  multiply_elements(channel_growth_, k_, c_ * ld, state_k_);
  for (i64 begin = 0; begin < c_; begin += kB) {
    R *qk = qk_ + begin * kC, *kk = kk_ + begin * kC;
    const i64 at = begin * ld;
    team_.decayed_products(q_ + at, k_ + at, channel_decay_ + at, ld, qk + begin, kk + begin, kC, prefix_);
    if (begin == 0) continue;
    weigh_keys(begin);
    team_.transpose(decayed_k_, ld, begin, ld, k_transposed_, kC);
    team_.template multiply<false>(block_q_ + at, ld, k_transposed_, kC, qk, kC, kB, begin, ld, false);
    team_.template multiply<false>(block_k_ + at, ld, k_transposed_, kC, kk, kC, kB, begin, ld, false);
  }
  weigh_keys(c_);
}

/// Multiplies the rows of a state by their decays in the chunk.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::decay_rows(R* s) {
  const R* decays = channel_growth_ + (c_ - 1) * key_ld_;
  team_.each(key_ld_, value_ld_, [=, this](i64 i, i64 j) { s[i * value_ld_ + j] *= decays[i]; });
}

/// Implements prepare_head() for decays per channel.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::prepare_channels(i64 head) {
  load_channel_gates(head);
  load_decays();
  multiply_with_decays();
  team_.template multiply<false>(state_k_, key_ld_, state(head), value_ld_, ks_, value_ld_, c_, value_ld_, key_ld_,
                                 false);
  team_.each(c_, value_ld_, [=, this](i64 i, i64 j) {
    const i64 at = i * value_ld_ + j;
    u_[at] = beta_[i] * (v_[at] - ks_[at]);
  });
  team_.each(c_, c_, [=, this](i64 i, i64 j) { a_[i * kC + j] = i > j ? -beta_[i] * kk_[i * kC + j] : R{0}; });
  solve(u_);
}

/// Implements write_output() for decays per channel. Sets m_ to QK on and below the diagonal and to 0 above it.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::write_channels(i64 head) {
  team_.template multiply<false>(state_q_, key_ld_, state(head), value_ld_, y_, value_ld_, c_, value_ld_, key_ld_,
                                 false);
  team_.each(c_, c_, [=, this](i64 i, i64 j) { m_[i * kC + j] = i >= j ? qk_[i * kC + j] : R{0}; });
  team_.template multiply<false>(m_, kC, u_, value_ld_, y_, value_ld_, c_, value_ld_, c_, true);
  team_.store(y_, value_ld_, rows_, value_, o_.y + y_at(t_, head), y_stride());
}

/// Implements backward_of_head() for decays per channel. y_ contains dy.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::backward_of_channels(i64 head) {
  team_.each(c_, c_, [=, this](i64 i, i64 j) { m_[i * kC + j] = i >= j ? qk_[i * kC + j] : R{0}; });
  team_.template multiply<true>(m_, kC, y_, value_ld_, du_, value_ld_, c_, value_ld_, c_, false);
  team_.template multiply<false>(decayed_k_, key_ld_, d_state(head), value_ld_, du_, value_ld_, c_, value_ld_, key_ld_,
                                 true);
  backward_of_channel_update(head);
  team_.transpose(u_, value_ld_, c_, value_ld_, u_transposed_, kC);
  team_.template multiply<false>(y_, value_ld_, u_transposed_, kC, dm_, kC, c_, c_, value_ld_, false);
  backward_of_corrections();
  backward_of_channel_state(head);
  backward_of_products();
  write_channel_gradients(head);
  write_beta_gradients(head);
  write_value_gradients(head);
}

/// Adds the gradient through the update of the state to dk. Initializes the gradient of g with the gradients through
/// the decays to the end of the chunk and through the decay of the state.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::backward_of_channel_update(i64 head) {
  const i64 ld = key_ld_;
  team_.transpose(d_state(head), value_ld_, ld, value_ld_, state_transposed_, ld);
  team_.template multiply<false>(u_, value_ld_, state_transposed_, ld, xk_, ld, c_, ld, value_ld_, false);
  team_.row_dots(state(head), d_state(head), value_ld_, ld, row_sums_);
  team_.each(1, c_ * ld, [=, this](i64, i64 at) { dk_[at] += weights_[at] * xk_[at]; });
  const R* decays = channel_growth_ + (c_ - 1) * ld;
  team_.each_column(c_, ld, [=, this](i64 i, i64 j) {
    const i64 at = i * ld + j;
    if (i == 0) prefix_[j] = decays[j] * row_sums_[j];
    channel_dg_[at] = prefix_[j];
    prefix_[j] += decayed_k_[at] * xk_[at];
  });
}

/// Replaces the gradient of U by the gradient of R, and K S by its gradient. Computes dv, d_beta, and the gradients of
/// QK (dm_) and KK (n_).
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::backward_of_corrections() {
  solve_transposed(du_);
  team_.template multiply<false>(du_, value_ld_, u_transposed_, kC, n_, kC, c_, c_, value_ld_, false);
  team_.each(1, c_ * value_ld_, [=, this](i64, i64 at) { dv_[at] = v_[at] - ks_[at]; });
  team_.row_dots(du_, dv_, value_ld_, c_, d_beta_);
  team_.each(c_, value_ld_, [=, this](i64 i, i64 j) {
    const i64 at = i * value_ld_ + j;
    dv_[at] = beta_[i] * du_[at];
    ks_[at] = -dv_[at];
  });
  team_.each(1, c_, [=, this](i64, i64 i) {
    R sum = 0;
    for (i64 j = 0; j < i; ++j) sum += n_[i * kC + j] * kk_[i * kC + j];
    d_beta_[i] -= sum;
  });
  team_.each(c_, c_, [=, this](i64 i, i64 j) {
    const i64 at = i * kC + j;
    n_[at] = i > j ? -beta_[i] * n_[at] : R{0};
    if (i < j) dm_[at] = 0;
  });
}

/// Adds the gradients through exp(G) Q S and exp(G) K S to dq, dk and the gradient of g. Computes the gradient of the
/// state before the chunk.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::backward_of_channel_state(i64 head) {
  const i64 ld = key_ld_, last = c_ - 1;
  R* ds = d_state(head);
  team_.transpose(state(head), value_ld_, ld, value_ld_, state_transposed_, ld);
  team_.template multiply<false>(y_, value_ld_, state_transposed_, ld, xk_, ld, c_, ld, value_ld_, false);
  team_.each(1, c_ * ld, [=, this](i64, i64 at) {
    dq_[at] += channel_growth_[at] * xk_[at];
    channel_terms_[at] = state_q_[at] * xk_[at];
  });
  team_.template multiply<false>(ks_, value_ld_, state_transposed_, ld, xk_, ld, c_, ld, value_ld_, false);
  team_.each(1, c_ * ld, [=, this](i64, i64 at) {
    dk_[at] += channel_growth_[at] * xk_[at];
    channel_terms_[at] += state_k_[at] * xk_[at];
  });
  team_.each_column(c_, ld, [=, this](i64 i, i64 j) {
    const i64 at = (last - i) * ld + j;
    prefix_[j] = i == 0 ? channel_terms_[at] : prefix_[j] + channel_terms_[at];
    channel_dg_[at] += prefix_[j];
  });
  decay_rows(ds);
  team_.template multiply<true>(state_q_, ld, y_, value_ld_, ds, value_ld_, ld, value_ld_, c_, true);
  team_.template multiply<true>(state_k_, ld, ks_, value_ld_, ds, value_ld_, ld, value_ld_, c_, true);
}

/// Adds the gradients through QK and KK to dq, dk and the gradient of g.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::backward_of_products() {
  for (i64 begin = 0; begin < c_; begin += kB) {
    if (begin > 0) backward_of_earlier_blocks(begin);
    const i64 at = begin * key_ld_, square = begin * kC + begin;
    team_.decayed_products_backward({q_ + at, k_ + at, channel_decay_ + at, dm_ + square, n_ + square, kC}, key_ld_,
                                    dq_ + at, dk_ + at, channel_dg_ + at);
  }
}

/// Adds the gradients through the products of the rows of the block at `begin` with earlier rows.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::backward_of_earlier_blocks(i64 begin) {
  const i64 ld = key_ld_, first = begin * ld, last = begin + kB - 1;
  const R *dm = dm_ + begin * kC, *n = n_ + begin * kC;
  weigh_keys(begin);
  team_.template multiply<false>(dm, kC, decayed_k_, ld, xk_, ld, kB, ld, begin, false);
  team_.each(1, kB * ld, [=, this](i64, i64 at) {
    dq_[first + at] += from_begin_[first + at] * xk_[at];
    channel_terms_[at] = block_q_[first + at] * xk_[at];
  });
  team_.template multiply<false>(n, kC, decayed_k_, ld, xk_, ld, kB, ld, begin, false);
  team_.each(1, kB * ld, [=, this](i64, i64 at) {
    dk_[first + at] += from_begin_[first + at] * xk_[at];
    channel_terms_[at] += block_k_[first + at] * xk_[at];
  });
  team_.each_column(kB, ld, [=, this](i64 i, i64 j) {
    const R term = channel_terms_[(kB - 1 - i) * ld + j];
    prefix_[j] = i == 0 ? term : prefix_[j] + term;
    channel_dg_[(last - i) * ld + j] += prefix_[j];
  });
  team_.template multiply<true>(dm, kC, block_q_ + first, ld, xk_, ld, begin, ld, kB, false);
  team_.template multiply<true>(n, kC, block_k_ + first, ld, xk_, ld, begin, ld, kB, true);
  team_.each(1, first, [=, this](i64, i64 at) { dk_[at] += weights_[at] * xk_[at]; });
  team_.each_column(begin, ld, [=, this](i64 i, i64 j) {
    const i64 at = i * ld + j;
    if (i == 0) prefix_[j] = 0;
    channel_dg_[at] += prefix_[j];
    prefix_[j] += decayed_k_[at] * xk_[at];
  });
}

/// Writes the gradient of alpha, and adds this chunk's terms to the gradients of a_log and dt_bias.
template <class Team, class T, class R>
MCPP_SCAN_FUNCTION void ChunkScan<Team, T, R>::write_channel_gradients(i64 head) {
  const R a = team_.exp(team_.widen(o_.a_log[param(head)]));
  team_.row_dots(channel_dg_, channel_g_, key_ld_, c_, dots_);
  team_.serial([=, this] {
    for (i64 i = 0; i < rows_; ++i) d_params_[3 * head] += dots_[i];
  });
  const i64 at = decay_at(t_, head);
  team_.channel_gates_backward(o_.p + at, p_stride(), rows_, key_, o_.dt_bias + param(head) * key_, a, channel_dg_,
                               key_ld_, o_.dp + at);
  team_.each_column(rows_, key_,
                    [=, this](i64 i, i64 j) { d_bias_[head * key_ld_ + j] += channel_dg_[i * key_ld_ + j]; });
}

}  // namespace mcpp
