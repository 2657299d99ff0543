// Chunked algorithm of gated_scan() and gated_scan_backward() for the heads of one group, shared by all backends. A
// `Team`, which is one CPU thread or one GPU thread block, provides loops and small GEMMs.
//
// Within a chunk, with G the sums of g from its first position on, D_ij = exp(G_i - G_j) for i >= j, and the state S
// before the chunk (Yang et al., "Parallelizing Linear Transformers with the Delta Rule", 2024):
//   (I + A) U = R, with A_ij = b_i (k_i . k_j) D_ij for i > j and R = b (V - exp(G) (K S)); without the delta rule
//   U = b V
//   Y = exp(G) (Q S) + ((Q K^T) D) U
//   S <- exp(G_last) S + (exp(G_last - G) K)^T U
// With a decay per key channel (Kimi Team, "Kimi Linear", 2025), G has a column per channel, and D becomes a part of
// the products (channel_decays.h). Chunks begin where documents begin, so that a document is computed as if it were
// alone.
#pragma once
#include "tensor/ops/scan/scan_operands.h"

namespace mcpp {

template <class Team, class T, class R>
class ChunkScan {
 public:
  /// Uses workspace() elements of device memory at `memory`, which need not be initialized.
  MCPP_SCAN_HOST_FUNCTION ChunkScan(const Team& team, const ScanOperands<T, R>& operands, i64 task, R* memory)
      : team_(team),
        o_(operands),
        sample_(task / operands.shape.groups),
        group_(task % operands.shape.groups),
        key_(operands.shape.key_dim),
        value_(operands.shape.value_dim),
        heads_(operands.shape.heads_per_group) {
    arena_.memory = memory;
    take_matrices();
  }

  /// Returns the number of elements of memory that a task needs.
  static i64 workspace(const ScanShape& shape) {
    ScanOperands<T, R> operands;
    operands.shape = shape;
    return ChunkScan(Team(), operands, 0, nullptr).arena_.used;
  }

  MCPP_SCAN_FUNCTION void forward() {
    load_state();
    for (i64 t = 0; t < o_.seq; t += rows_) {
      begin_chunk(t, chunk_rows(t));
      if (resets_at(t)) clear(state_, heads_ * key_ld_ * value_ld_);
      load_keys();
      load_queries();
      for (i64 head = 0; head < heads_; ++head) {
        prepare_head(head);
        write_output(head);
        update_state(head);
      }
    }
    store_state();
  }

  MCPP_SCAN_FUNCTION void backward() {
    i64 slot = recompute_states();
    clear(d_state_, heads_ * key_ld_ * value_ld_);
    clear(d_params_, 3 * heads_);
    clear(d_bias_, bias_size());
    for (i64 end = o_.seq; end > 0;) {
      const i64 begin = chunk_begin(end);
      begin_chunk(begin, end - begin);
      const bool resets = begin == 0 || resets_at(begin);
      resets ? clear(state_, heads_ * key_ld_ * value_ld_) : load_slot(--slot);
      load_keys();
      load_queries();
      clear(dq_, c_ * key_ld_);
      clear(dk_, c_ * key_ld_);
      if (!decays_channels()) clear(d_qk_, kC * kC), clear(d_kk_, kC * kC);
      for (i64 head = 0; head < heads_; ++head) {
        prepare_head(head);
        backward_of_head(head);
      }
      if (!decays_channels()) backward_of_shared_products();
      write_key_gradients();
      if (resets) clear(d_state_, heads_ * key_ld_ * value_ld_);
      end = begin;
    }
    write_param_gradients();
  }

 private:
  static constexpr i64 kC = kScanChunk;
  static constexpr i64 kB = kScanPadding;  // rows of a block of a chunk (channel_decays.h)

  MCPP_SCAN_FUNCTION bool is_delta() const { return o_.shape.is_delta(); }
  MCPP_SCAN_FUNCTION bool decays_channels() const { return o_.shape.decays_channels(); }
  MCPP_SCAN_FUNCTION i64 row(i64 t) const { return (t * o_.batch + sample_) * o_.shape.groups + group_; }
  MCPP_SCAN_FUNCTION const T* x_row(i64 t) const { return o_.x + row(t) * o_.shape.conv_width(); }
  MCPP_SCAN_FUNCTION i64 x_stride() const { return o_.batch * o_.shape.groups * o_.shape.conv_width(); }
  MCPP_SCAN_FUNCTION i64 y_at(i64 t, i64 head) const { return (row(t) * heads_ + head) * value_; }
  MCPP_SCAN_FUNCTION i64 y_stride() const { return o_.batch * o_.shape.heads() * value_; }
  /// These functions return indices in p: of the first gate (alpha or dt) of the decays of a head, and of its gate
  /// beta.
  MCPP_SCAN_FUNCTION i64 decay_at(i64 t, i64 head) const {
    return (row(t) + 1) * o_.shape.width() - (heads_ - head) * o_.shape.decays_per_head();
  }
  MCPP_SCAN_FUNCTION i64 beta_at(i64 t, i64 head) const {
    return (row(t) + 1) * o_.shape.width() - o_.shape.decay_width() + head;
  }
  MCPP_SCAN_FUNCTION i64 p_stride() const { return o_.batch * o_.shape.groups * o_.shape.width(); }
  MCPP_SCAN_FUNCTION i64 param(i64 head) const { return group_ * heads_ + head; }
  MCPP_SCAN_FUNCTION R* state(i64 head) const { return state_ + head * key_ld_ * value_ld_; }
  MCPP_SCAN_FUNCTION R* d_state(i64 head) const { return d_state_ + head * key_ld_ * value_ld_; }

  /// Returns the first row of the document of row t. Negative if the document begins before row 0.
  MCPP_SCAN_FUNCTION i64 document(i64 t) const {
    return (o_.starts ? o_.starts[t * o_.batch + sample_] : 0) - o_.first;
  }
  MCPP_SCAN_FUNCTION bool resets_at(i64 t) const { return document(t) == t; }
  MCPP_SCAN_FUNCTION i64 chunk_rows(i64 t) const {
    i64 rows = 1;
    while (rows < kC && t + rows < o_.seq && !resets_at(t + rows)) ++rows;
    return rows;
  }
  /// Returns the first row of the chunk that ends before row `end`.
  MCPP_SCAN_FUNCTION i64 chunk_begin(i64 end) const {
    const i64 begin = document(end - 1) > 0 ? document(end - 1) : 0;
    return begin + (end - 1 - begin) / kC * kC;
  }
  MCPP_SCAN_FUNCTION void begin_chunk(i64 t, i64 rows) { t_ = t, rows_ = rows, c_ = scan_padded(rows); }

  MCPP_SCAN_HOST_FUNCTION void take_matrices() {
    key_ld_ = scan_padded(key_), value_ld_ = scan_padded(value_);
    for (R** vector : {&raw_, &g_, &sum_, &sum_low_, &beta_, &growth_, &rest_, &slope_, &q_norm_, &k_norm_, &d_g_,
                       &d_beta_, &dots_, &outer_, &update_, &carry_})
      *vector = arena_.take(kC);
    for (R** keys : {&q_, &k_, &decayed_k_, &dq_, &dk_, &xk_}) *keys = arena_.take(kC * key_ld_);
    for (R** values : {&v_, &u_, &ks_, &y_, &du_, &dv_}) *values = arena_.take(kC * value_ld_);
    for (R** squares : {&decay_, &a_, &qk_, &kk_, &m_, &dm_, &n_, &d_qk_, &d_kk_}) *squares = arena_.take(kC * kC);
    k_transposed_ = arena_.take(key_ld_ * kC), u_transposed_ = arena_.take(value_ld_ * kC);
    state_transposed_ = arena_.take(key_ld_ * value_ld_), row_sums_ = arena_.take(key_ld_);
    state_ = arena_.take(heads_ * key_ld_ * value_ld_), d_state_ = arena_.take(heads_ * key_ld_ * value_ld_);
    d_params_ = arena_.take(3 * heads_);
    const i64 channels = o_.shape.decays_channels() ? kC * key_ld_ : 0;
    for (R** matrix : {&channel_g_, &channel_decay_, &channel_growth_, &from_begin_, &to_end_, &weights_, &state_q_,
                       &state_k_, &block_q_, &block_k_, &channel_dg_, &channel_terms_})
      *matrix = arena_.take(channels);
    block_sums_ = arena_.take(channels / kB), prefix_ = arena_.take(channels / kC), d_bias_ = arena_.take(bias_size());
  }
  MCPP_SCAN_HOST_FUNCTION i64 bias_size() const { return o_.shape.decays_channels() ? heads_ * key_ld_ : 0; }

  MCPP_SCAN_FUNCTION void clear(R* x, i64 count) {
    team_.each(1, count, [=](i64, i64 j) { x[j] = 0; });
  }
  /// Copies the state from dense to padded storage.
  MCPP_SCAN_FUNCTION void load_state() {
    clear(state_, heads_ * key_ld_ * value_ld_);
    if (!o_.state) return;
    const R* from = o_.state + (sample_ * o_.shape.heads() + group_ * heads_) * key_ * value_;
    team_.each(heads_ * key_, value_, [=, this](i64 i, i64 j) {
      state_[(i / key_ * key_ld_ + i % key_) * value_ld_ + j] = from[i * value_ + j];
    });
  }
  MCPP_SCAN_FUNCTION void store_state() {
    if (!o_.state) return;
    R* to = o_.state + (sample_ * o_.shape.heads() + group_ * heads_) * key_ * value_;
    team_.each(heads_ * key_, value_, [=, this](i64 i, i64 j) {
      to[i * value_ + j] = state_[(i / key_ * key_ld_ + i % key_) * value_ld_ + j];
    });
  }
  MCPP_SCAN_FUNCTION R* slot_at(i64 slot) const {
    const i64 slots = o_.seq / kC;
    return o_.states + ((sample_ * o_.shape.groups + group_) * slots + slot) * heads_ * key_ld_ * value_ld_;
  }
  MCPP_SCAN_FUNCTION void load_slot(i64 slot) {
    const R* from = slot_at(slot);
    team_.each(1, heads_ * key_ld_ * value_ld_, [=, this](i64, i64 j) { state_[j] = from[j]; });
  }

  /// Loads the keys of the chunk, normalizes them with DeltaRule, and computes K^T and K K^T.
  MCPP_SCAN_FUNCTION void load_keys() {
    team_.load(x_row(t_) + key_, x_stride(), rows_, key_, k_, key_ld_, c_);
    if (is_delta()) normalize(k_, k_norm_, R{1});
    if (decays_channels()) return;
    team_.transpose(k_, key_ld_, c_, key_ld_, k_transposed_, kC);
    if (is_delta()) team_.template multiply<false>(k_, key_ld_, k_transposed_, kC, kk_, kC, c_, c_, key_ld_, false);
  }
  /// Loads the queries of the chunk, normalizes them with DeltaRule, and computes Q K^T. Call it after load_keys().
  MCPP_SCAN_FUNCTION void load_queries() {
    team_.load(x_row(t_), x_stride(), rows_, key_, q_, key_ld_, c_);
    if (is_delta()) normalize(q_, q_norm_, R{1} / team_.sqrt(static_cast<R>(key_)));
    if (decays_channels()) return;
    team_.template multiply<false>(q_, key_ld_, k_transposed_, kC, qk_, kC, c_, c_, key_ld_, false);
  }
  /// Normalizes each row of x to length `factor`, and stores the row factors in `norms`.
  MCPP_SCAN_FUNCTION void normalize(R* x, R* norms, R factor) {
    team_.row_dots(x, x, key_ld_, c_, norms);
    team_.each(1, c_, [=, this](i64, i64 i) { norms[i] = R{1} / team_.sqrt(norms[i] + static_cast<R>(1e-6)); });
    team_.each(c_, key_ld_, [=, this](i64 i, i64 j) { x[i * key_ld_ + j] *= norms[i] * factor; });
  }

  /// Computes g, b, the slope of softplus, the sums G with their rounding errors, exp(G) and exp(G_last - G).
  MCPP_SCAN_FUNCTION void load_gates(i64 head) {
    const R a = team_.exp(team_.widen(o_.a_log[param(head)])), bias = team_.widen(o_.dt_bias[param(head)]);
    const bool delta = is_delta();
    const R scale = static_cast<R>(o_.shape.step_scale());
    team_.each(1, c_, [=, this](i64, i64 i) {
      raw_[i] = i < rows_ ? team_.widen(o_.p[decay_at(t_ + i, head)]) + bias : R{0};
      if (delta) beta_[i] = i < rows_ ? team_.widen(o_.p[beta_at(t_ + i, head)]) : R{0};
    });
    team_.softplus(raw_, c_, g_);
    team_.logistic(raw_, c_, slope_);
    if (delta) team_.logistic(beta_, c_, beta_);
    team_.each(1, c_, [=, this](i64, i64 i) {
      const R step = g_[i];
      g_[i] = i < rows_ ? -a * step : R{0};
      beta_[i] = i < rows_ ? (delta ? scale * beta_[i] : step) : R{0};
    });
    team_.serial([=, this] {
      double sum = 0;
      for (i64 i = 0; i < c_; ++i) {
        sum += static_cast<double>(g_[i]);
        sum_[i] = static_cast<R>(sum);
        sum_low_[i] = static_cast<R>(sum - static_cast<double>(sum_[i]));
      }
    });
    team_.each(1, c_, [=, this](i64, i64 i) { rest_[i] = sum_[c_ - 1] - sum_[i] + (sum_low_[c_ - 1] - sum_low_[i]); });
    team_.exps(sum_, c_, growth_);
    team_.exps(rest_, c_, rest_);
    team_.decay(sum_, sum_low_, c_, decay_, kC);
  }

  /// Computes the per-head values of the chunk, up to U and the decayed keys.
  MCPP_SCAN_FUNCTION void prepare_head(i64 head) {
    team_.load(x_row(t_) + 2 * key_ + head * value_, x_stride(), rows_, value_, v_, value_ld_, c_);
    if (decays_channels()) return prepare_channels(head);
    load_gates(head);
    if (is_delta()) {
      team_.template multiply<false>(k_, key_ld_, state(head), value_ld_, ks_, value_ld_, c_, value_ld_, key_ld_,
                                     false);
      team_.each(c_, value_ld_, [=, this](i64 i, i64 j) {
        const i64 at = i * value_ld_ + j;
        u_[at] = beta_[i] * (v_[at] - growth_[i] * ks_[at]);
      });
      team_.each(c_, c_, [=, this](i64 i, i64 j) {
        const i64 at = i * kC + j;
        a_[at] = i > j ? -beta_[i] * kk_[at] * decay_[at] : R{0};
      });
      solve(u_);
    } else {
      team_.each(c_, value_ld_, [=, this](i64 i, i64 j) { u_[i * value_ld_ + j] = beta_[i] * v_[i * value_ld_ + j]; });
    }
    team_.each(c_, key_ld_, [=, this](i64 i, i64 j) { decayed_k_[i * key_ld_ + j] = rest_[i] * k_[i * key_ld_ + j]; });
  }

  /// Solves (I + A) x = r in place, in blocks of rows. a_ holds -A.
  MCPP_SCAN_FUNCTION void solve(R* x) {
    constexpr i64 kRows = 8;
    for (i64 begin = 0; begin < c_; begin += kRows) {
      if (begin > 0)
        team_.template multiply<false>(a_ + begin * kC, kC, x, value_ld_, x + begin * value_ld_, value_ld_, kRows,
                                       value_ld_, begin, true);
      for (i64 i = begin + 1; i < begin + kRows; ++i)
        team_.template multiply<false>(a_ + i * kC + begin, kC, x + begin * value_ld_, value_ld_, x + i * value_ld_,
                                       value_ld_, 1, value_ld_, i - begin, true);
    }
  }
  /// Solves (I + A)^T x = r in place.
  MCPP_SCAN_FUNCTION void solve_transposed(R* x) {
    constexpr i64 kRows = 8;
    for (i64 begin = c_ - kRows; begin >= 0; begin -= kRows) {
      const i64 end = begin + kRows;
      if (end < c_)
        team_.template multiply<true>(a_ + end * kC + begin, kC, x + end * value_ld_, value_ld_, x + begin * value_ld_,
                                      value_ld_, kRows, value_ld_, c_ - end, true);
      for (i64 i = end - 2; i >= begin; --i)
        team_.template multiply<true>(a_ + (i + 1) * kC + i, kC, x + (i + 1) * value_ld_, value_ld_, x + i * value_ld_,
                                      value_ld_, 1, value_ld_, end - 1 - i, true);
    }
  }

  MCPP_SCAN_FUNCTION void write_output(i64 head) {
    if (decays_channels()) return write_channels(head);
    team_.template multiply<false>(q_, key_ld_, state(head), value_ld_, y_, value_ld_, c_, value_ld_, key_ld_, false);
    const R skip = o_.skip ? team_.widen(o_.skip[param(head)]) : R{0};
    team_.each(c_, value_ld_, [=, this](i64 i, i64 j) {
      const i64 at = i * value_ld_ + j;
      y_[at] = growth_[i] * y_[at] + skip * v_[at];
    });
    team_.each(c_, c_, [=, this](i64 i, i64 j) { m_[i * kC + j] = qk_[i * kC + j] * decay_[i * kC + j]; });
    team_.template multiply<false>(m_, kC, u_, value_ld_, y_, value_ld_, c_, value_ld_, c_, true);
    team_.store(y_, value_ld_, rows_, value_, o_.y + y_at(t_, head), y_stride());
  }

  MCPP_SCAN_FUNCTION void update_state(i64 head) {
    R* s = state(head);
    if (decays_channels()) {
      decay_rows(s);
    } else {
      const R growth = growth_[c_ - 1];
      team_.each(1, key_ld_ * value_ld_, [=](i64, i64 j) { s[j] *= growth; });
    }
    team_.template multiply<true>(decayed_k_, key_ld_, u_, value_ld_, s, value_ld_, key_ld_, value_ld_, c_, true);
  }

  /// Stores the state before each chunk that does not begin a document. Returns the number of stored states.
  MCPP_SCAN_FUNCTION i64 recompute_states() {
    i64 slot = 0;
    for (i64 t = 0; t < o_.seq; t += rows_) {
      begin_chunk(t, chunk_rows(t));
      if (t == 0 || resets_at(t)) {
        clear(state_, heads_ * key_ld_ * value_ld_);
      } else {
        R* to = slot_at(slot++);
        team_.each(1, heads_ * key_ld_ * value_ld_, [=, this](i64, i64 j) { to[j] = state_[j]; });
      }
      load_keys();
      if (decays_channels()) load_queries();  // prepare_head() reads them
      for (i64 head = 0; head < heads_; ++head) {
        prepare_head(head);
        update_state(head);
      }
    }
    return slot;
  }

  MCPP_SCAN_FUNCTION void backward_of_head(i64 head) {
    team_.load(o_.dy + y_at(t_, head), y_stride(), rows_, value_, y_, value_ld_, c_);
    if (decays_channels()) return backward_of_channels(head);
    team_.each(c_, c_, [=, this](i64 i, i64 j) { m_[i * kC + j] = qk_[i * kC + j] * decay_[i * kC + j]; });
    team_.template multiply<true>(m_, kC, y_, value_ld_, du_, value_ld_, c_, value_ld_, c_, false);
    team_.template multiply<false>(decayed_k_, key_ld_, d_state(head), value_ld_, du_, value_ld_, c_, value_ld_,
                                   key_ld_, true);
    backward_of_update(head);
    team_.transpose(u_, value_ld_, c_, value_ld_, u_transposed_, kC);
    team_.template multiply<false>(y_, value_ld_, u_transposed_, kC, dm_, kC, c_, c_, value_ld_, false);
    if (is_delta()) {
      backward_of_delta();
    } else {
      team_.row_dots(du_, v_, value_ld_, c_, d_beta_);
      team_.each(c_, value_ld_,
                 [=, this](i64 i, i64 j) { dv_[i * value_ld_ + j] = beta_[i] * du_[i * value_ld_ + j]; });
    }
    backward_of_skip(head);
    backward_of_state(head);
    add_product_gradients();
    gradient_of_g();
    write_gate_gradients(head);
    write_value_gradients(head);
  }
  MCPP_SCAN_FUNCTION void write_value_gradients(i64 head) {
    team_.store(dv_, value_ld_, rows_, value_, o_.dx + row(t_) * o_.shape.conv_width() + 2 * key_ + head * value_,
                x_stride());
  }

  /// Adds the gradient through the update of the state to dk. Initializes the terms of the gradient of g: update_[i] is
  /// the gradient through exp(G_last - G_i), carry_ through exp(G_last), and outer_[i] through exp(G_i).
  MCPP_SCAN_FUNCTION void backward_of_update(i64 head) {
    team_.transpose(d_state(head), value_ld_, key_ld_, value_ld_, state_transposed_, key_ld_);
    team_.template multiply<false>(u_, value_ld_, state_transposed_, key_ld_, xk_, key_ld_, c_, key_ld_, value_ld_,
                                   false);
    team_.row_dots(decayed_k_, xk_, key_ld_, c_, update_);
    team_.each(c_, key_ld_, [=, this](i64 i, i64 j) { dk_[i * key_ld_ + j] += rest_[i] * xk_[i * key_ld_ + j]; });
    team_.row_dots(state(head), d_state(head), value_ld_, key_ld_, row_sums_);
    team_.serial([=, this] {
      R product = 0;
      for (i64 i = 0; i < key_ld_; ++i) product += row_sums_[i];
      *carry_ = growth_[c_ - 1] * product;
    });
    clear(outer_, c_);
  }

  /// Replaces the gradient of U by the gradient of R, and K S by its gradient. Computes dv, d_beta and n = b dA D.
  MCPP_SCAN_FUNCTION void backward_of_delta() {
    solve_transposed(du_);
    team_.template multiply<false>(du_, value_ld_, u_transposed_, kC, n_, kC, c_, c_, value_ld_, false);
    team_.each(c_, value_ld_, [=, this](i64 i, i64 j) {
      const i64 at = i * value_ld_ + j;
      dv_[at] = v_[at] - growth_[i] * ks_[at];
    });
    team_.row_dots(du_, dv_, value_ld_, c_, d_beta_);
    team_.row_dots(du_, ks_, value_ld_, c_, dots_);
    team_.each(c_, value_ld_, [=, this](i64 i, i64 j) {
      const i64 at = i * value_ld_ + j;
      dv_[at] = beta_[i] * du_[at];
      ks_[at] = -growth_[i] * dv_[at];
    });
    team_.each(1, c_, [=, this](i64, i64 i) {
      outer_[i] -= beta_[i] * growth_[i] * dots_[i];
      R sum = 0;
      for (i64 j = 0; j < i; ++j) sum -= n_[i * kC + j] * decay_[i * kC + j] * kk_[i * kC + j];
      d_beta_[i] += sum;
    });
    team_.each(c_, c_, [=, this](i64 i, i64 j) {
      const i64 at = i * kC + j;
      n_[at] = i > j ? -beta_[i] * n_[at] * decay_[at] : R{0};
    });
  }

  MCPP_SCAN_FUNCTION void backward_of_skip(i64 head) {
    if (!o_.skip) return;
    const R skip = team_.widen(o_.skip[param(head)]);
    team_.row_dots(y_, v_, value_ld_, c_, dots_);
    team_.each(c_, value_ld_, [=, this](i64 i, i64 j) { dv_[i * value_ld_ + j] += skip * y_[i * value_ld_ + j]; });
    team_.serial([=, this] {
      for (i64 i = 0; i < c_; ++i) d_params_[3 * head + 2] += dots_[i];
    });
  }

  /// Adds the gradients through Q S and K S to dq, dk and outer_, and computes the gradient of the state before the
  /// chunk.
  MCPP_SCAN_FUNCTION void backward_of_state(i64 head) {
    R* ds = d_state(head);
    const R growth = growth_[c_ - 1];
    team_.each(c_, value_ld_, [=, this](i64 i, i64 j) { y_[i * value_ld_ + j] *= growth_[i]; });
    team_.transpose(state(head), value_ld_, key_ld_, value_ld_, state_transposed_, key_ld_);
    team_.template multiply<false>(y_, value_ld_, state_transposed_, key_ld_, xk_, key_ld_, c_, key_ld_, value_ld_,
                                   false);
    team_.row_dots(q_, xk_, key_ld_, c_, dots_);
    team_.each(1, c_, [=, this](i64, i64 i) { outer_[i] += dots_[i]; });
    team_.each(1, c_ * key_ld_, [=, this](i64, i64 at) { dq_[at] += xk_[at]; });
    team_.each(1, key_ld_ * value_ld_, [=](i64, i64 j) { ds[j] *= growth; });
    team_.template multiply<true>(q_, key_ld_, y_, value_ld_, ds, value_ld_, key_ld_, value_ld_, c_, true);
    if (!is_delta()) return;
    team_.template multiply<false>(ks_, value_ld_, state_transposed_, key_ld_, dk_, key_ld_, c_, key_ld_, value_ld_,
                                   true);
    team_.template multiply<true>(k_, key_ld_, ks_, value_ld_, ds, value_ld_, key_ld_, value_ld_, c_, true);
  }

  /// Adds the gradients of this head to the gradients of Q K^T and K K^T. m_ becomes the gradients of G_i - G_j.
  MCPP_SCAN_FUNCTION void add_product_gradients() {
    const bool delta = is_delta();
    team_.each(c_, c_, [=, this](i64 i, i64 j) {
      const i64 at = i * kC + j;
      const R d_qk = dm_[at] * decay_[at];
      d_qk_[at] += d_qk;
      m_[at] = d_qk * qk_[at];
      if (!delta) return;
      d_kk_[at] += n_[at];
      m_[at] += n_[at] * kk_[at];
    });
  }
  /// Adds the gradients through Q K^T and K K^T, which the heads share, to dq and dk.
  MCPP_SCAN_FUNCTION void backward_of_shared_products() {
    team_.template multiply<false>(d_qk_, kC, k_, key_ld_, dq_, key_ld_, c_, key_ld_, c_, true);
    team_.template multiply<true>(d_qk_, kC, q_, key_ld_, dk_, key_ld_, c_, key_ld_, c_, true);
    if (!is_delta()) return;
    team_.transpose(d_kk_, kC, c_, c_, n_, kC);
    team_.each(c_, c_, [=, this](i64 i, i64 j) { n_[i * kC + j] += d_kk_[i * kC + j]; });
    team_.template multiply<false>(n_, kC, k_, key_ld_, dk_, key_ld_, c_, key_ld_, c_, true);
  }

  /// Computes the gradient of g. g_t is a term of G_i - G_j for i >= t > j, so its gradient is the sum of the gradients
  /// of these differences, which are in m_ for positions within the chunk. The difference of row sums and column sums
  /// would suffer from cancellation.
  MCPP_SCAN_FUNCTION void gradient_of_g() {
    team_.each_column(c_ - 1, c_, [=, this](i64 i, i64 j) {  // sums over the rows from each row on
      const i64 at = (c_ - 2 - i) * kC + j;
      m_[at] += m_[at + kC];
    });
    team_.each(1, c_, [=, this](i64, i64 t) {
      R sum = 0;
      for (i64 j = 0; j < t; ++j) sum += m_[t * kC + j];
      d_g_[t] = sum;
    });
    team_.serial([=, this] {
      R before = *carry_, after = 0;
      for (i64 t = 0; t < c_; ++t) {
        d_g_[t] += before;
        before += update_[t];
      }
      for (i64 t = c_ - 1; t >= 0; --t) {
        after += outer_[t];
        d_g_[t] += after;
      }
    });
  }

  MCPP_SCAN_FUNCTION void write_gate_gradients(i64 head) {
    const R a = team_.exp(team_.widen(o_.a_log[param(head)]));
    const bool delta = is_delta();
    team_.serial([=, this] {
      for (i64 i = 0; i < rows_; ++i) {
        d_params_[3 * head] += d_g_[i] * g_[i];
        dots_[i] = (delta ? -a * d_g_[i] : d_beta_[i] - a * d_g_[i]) * slope_[i];
        d_params_[3 * head + 1] += dots_[i];
      }
    });
    team_.each(1, rows_, [=, this](i64, i64 i) { team_.narrow(dots_[i], o_.dp + decay_at(t_ + i, head)); });
    if (delta) write_beta_gradients(head);
  }
  MCPP_SCAN_FUNCTION void write_beta_gradients(i64 head) {
    const R inverse_scale = R{1} / static_cast<R>(o_.shape.step_scale());
    team_.each(1, rows_, [=, this](i64, i64 i) {
      team_.narrow(d_beta_[i] * beta_[i] * (R{1} - beta_[i] * inverse_scale), o_.dp + beta_at(t_ + i, head));
    });
  }

  /// Writes the gradients of the queries and keys before normalization to dx.
  MCPP_SCAN_FUNCTION void write_key_gradients() {
    T* to = o_.dx + row(t_) * o_.shape.conv_width();
    if (is_delta()) {
      denormalize(q_, q_norm_, R{1} / team_.sqrt(static_cast<R>(key_)), dq_);
      denormalize(k_, k_norm_, R{1}, dk_);
    }
    team_.store(dq_, key_ld_, rows_, key_, to, x_stride());
    team_.store(dk_, key_ld_, rows_, key_, to + key_, x_stride());
  }
  /// Replaces dx, the gradient of the result of normalize(), by the gradient of its input. `norms` holds 1 / length.
  MCPP_SCAN_FUNCTION void denormalize(const R* x, const R* norms, R factor, R* dx) {
    team_.row_dots(x, dx, key_ld_, c_, dots_);
    team_.each(c_, key_ld_, [=, this](i64 i, i64 j) {
      const i64 at = i * key_ld_ + j;
      dx[at] = norms[i] * (factor * dx[at] - x[at] / factor * dots_[i]);
    });
  }

  MCPP_SCAN_FUNCTION void write_param_gradients() {
    team_.each(1, heads_, [=, this](i64, i64 head) {
      const i64 at = sample_ * o_.shape.heads() + param(head);
      o_.d_a_log[at] = d_params_[3 * head];
      if (!decays_channels()) o_.d_dt_bias[at] = d_params_[3 * head + 1];
      if (o_.d_skip) o_.d_skip[at] = d_params_[3 * head + 2];
    });
    if (!decays_channels()) return;
    R* to = o_.d_dt_bias + (sample_ * o_.shape.heads() + group_ * heads_) * key_;
    team_.each(heads_, key_, [=, this](i64 i, i64 j) { to[i * key_ + j] = d_bias_[i * key_ld_ + j]; });
  }

  // Decays of key channels (channel_decays.h).
  MCPP_SCAN_FUNCTION void load_channel_gates(i64 head);
  MCPP_SCAN_FUNCTION void add_to_block(const R* x, i64 block, R* to);
  MCPP_SCAN_FUNCTION void multiply_elements(const R* a, const R* b, i64 count, R* to);
  MCPP_SCAN_FUNCTION void load_decays();
  MCPP_SCAN_FUNCTION void weigh_keys(i64 end);
  MCPP_SCAN_FUNCTION void decay_rows(R* s);
  MCPP_SCAN_FUNCTION void multiply_with_decays();
  MCPP_SCAN_FUNCTION void prepare_channels(i64 head);
  MCPP_SCAN_FUNCTION void write_channels(i64 head);
  MCPP_SCAN_FUNCTION void backward_of_channels(i64 head);
  MCPP_SCAN_FUNCTION void backward_of_channel_update(i64 head);
  MCPP_SCAN_FUNCTION void backward_of_corrections();
  MCPP_SCAN_FUNCTION void backward_of_channel_state(i64 head);
  MCPP_SCAN_FUNCTION void backward_of_products();
  MCPP_SCAN_FUNCTION void backward_of_earlier_blocks(i64 begin);
  MCPP_SCAN_FUNCTION void write_channel_gradients(i64 head);

  const Team& team_;
  const ScanOperands<T, R>& o_;
  i64 sample_, group_, key_, value_, heads_;
  ScanArena<R> arena_;
  i64 t_ = 0, rows_ = 0, c_ = 0;   // first row, number of rows, and padded number of rows of the chunk
  i64 key_ld_ = 0, value_ld_ = 0;  // padded key_dim and value_dim
  // [kC]
  R *raw_, *g_, *sum_, *sum_low_, *beta_, *growth_, *rest_, *slope_, *q_norm_, *k_norm_, *d_g_, *d_beta_, *dots_,
      *outer_, *update_, *carry_;
  R *q_, *k_, *decayed_k_, *dq_, *dk_, *xk_;   // [kC, key_ld_]
  R *v_, *u_, *ks_, *y_, *du_, *dv_;           // [kC, value_ld_]
  R *decay_, *a_, *qk_, *kk_, *m_, *dm_, *n_;  // [kC, kC]
  R *d_qk_, *d_kk_;                            // [kC, kC]: sums over the heads
  R *k_transposed_, *u_transposed_;            // [key_ld_, kC], [value_ld_, kC]
  R *state_transposed_, *row_sums_;            // [value_ld_, key_ld_], [key_ld_]
  R *state_, *d_state_;                        // [heads_, key_ld_, value_ld_]
  R* d_params_;                                // [heads_, 3]: a_log, dt_bias, skip
  // Decays of key channels: [kC, key_ld_]. state_q_ and state_k_ are exp(G) Q and exp(G) K. block_q_ and block_k_ are
  // the same products with G since the beginning of the block.
  R *channel_g_, *channel_decay_, *channel_growth_, *from_begin_, *to_end_, *weights_, *state_q_, *state_k_, *block_q_,
      *block_k_, *channel_dg_, *channel_terms_;
  R *block_sums_, *prefix_, *d_bias_;  // [kC / kB, key_ld_], [key_ld_], [heads_, key_ld_]
};

}  // namespace mcpp
