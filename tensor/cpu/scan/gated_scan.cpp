#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/scan/gated_scan.cpp"
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/math-inl.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/tile_gemm-inl.h"
#include "tensor/ops/scan/channel_decays.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Team of one thread for ChunkScan.
template <class T>
struct CpuTeam {
  using R = Lane<T>;

  static R exp(R x) { return std::exp(x); }
  static R sqrt(R x) { return std::sqrt(x); }
  static R widen(T x) { return static_cast<R>(x); }
  static void narrow(R x, T* to) { *to = static_cast<T>(x); }

  template <class F>
  HWY_NOINLINE void each(i64 rows, i64 columns, F&& f) const {
    for (i64 i = 0; i < rows; ++i) {
      for (i64 j = 0; j < columns; ++j) f(i, j);
    }
  }
  /// Calls f(i, j) for the rows i of each column j in order.
  template <class F>
  void each_column(i64 rows, i64 columns, F&& f) const {
    each(rows, columns, f);
  }
  template <class F>
  HWY_NOINLINE void serial(F&& f) const {
    f();
  }
  /// Loads rows of `columns` elements, and fills the rest of the matrix [padded_rows, ld] with 0.
  HWY_NOINLINE void load(const T* from, i64 stride, i64 rows, i64 columns, R* to, i64 ld, i64 padded_rows) const {
    const LaneTag<T> d;
    for (i64 i = 0; i < rows; ++i) {
      sweep(d, 0, columns, [=](i64 j, auto lanes) HWY_ATTR {
        mcpp::HWY_NAMESPACE::store(load_lanes(d, from + i * stride + j, lanes), d, to + i * ld + j, lanes);
      });
      std::fill(to + i * ld + columns, to + (i + 1) * ld, R{0});
    }
    std::fill(to + rows * ld, to + padded_rows * ld, R{0});
  }
  HWY_NOINLINE void store_rows(const R* from, i64 ld, i64 rows, i64 columns, T* to, i64 stride) const {
    const LaneTag<T> d;
    for (i64 i = 0; i < rows; ++i) {
      sweep(d, 0, columns, [=](i64 j, auto lanes) HWY_ATTR {
        mcpp::HWY_NAMESPACE::store(load_lanes(d, from + i * ld + j, lanes), d, to + i * stride + j, lanes);
      });
    }
  }
  void store(const R* from, i64 ld, i64 rows, i64 columns, T* to, i64 stride) const {
    store_rows(from, ld, rows, columns, to, stride);
  }
  template <bool kTransposedA>
  HWY_NOINLINE void multiply(const R* a, i64 lda, const R* b, i64 ldb, R* c, i64 ldc, i64 m, i64 n, i64 k,
                             bool accumulate) const {
    kernel::HWY_NAMESPACE::multiply<kTransposedA>(
        LaneTag<T>(), kernel::HWY_NAMESPACE::Operands<R>{a, lda, b, ldb, c, ldc}, m, n, k, accumulate);
  }
  HWY_NOINLINE void transpose(const R* from, i64 ld, i64 rows, i64 columns, R* to, i64 step) const {
    if constexpr (sizeof(R) == 4) {
      kernel::HWY_NAMESPACE::transpose(from, ld, rows, columns, to, step);
    } else {
      for (i64 i = 0; i < rows; ++i) {
        for (i64 j = 0; j < columns; ++j) to[j * step + i] = from[i * ld + j];
      }
    }
  }
  /// Computes the product of each row of a and b, [rows, columns] with a multiple of kScanPadding columns.
  HWY_NOINLINE void row_dots(const R* a, const R* b, i64 columns, i64 rows, R* dots) const {
    const LaneTag<T> d;
    for (i64 i = 0; i < rows; ++i) {
      Sum<LaneTag<T>> sum;
      sweep_slots(d, i * columns, (i + 1) * columns, [&](i64 j, auto lanes, int slot) HWY_ATTR {
        sum.add_product(load_lanes(d, a + j, lanes), load_lanes(d, b + j, lanes), slot);
      });
      dots[i] = sum.total();
    }
  }
  /// Computes exp(sums[i] - sums[j]) for j <= i, where `low` are the rounding errors of sums; 0 above the diagonal.
  HWY_NOINLINE void decay(const R* sums, const R* low, i64 rows, R* to, i64 ld) const {
    const LaneTag<T> d;
    const i64 lanes = static_cast<i64>(hn::Lanes(d));
    for (i64 i = 0; i < rows; ++i) {
      for (i64 j = 0; j < rows; j += lanes) {
        R* at = to + i * ld + j;
        if (j > i) {
          hn::StoreU(hn::Zero(d), d, at);
          continue;
        }
        const auto high = hn::Sub(hn::Set(d, sums[i]), hn::LoadU(d, sums + j));
        const auto e =
            exp_of(d, hn::Min(hn::Zero(d), hn::Add(high, hn::Sub(hn::Set(d, low[i]), hn::LoadU(d, low + j)))));
        const auto count = static_cast<std::size_t>(std::min(lanes, i - j + 1));
        hn::StoreU(hn::IfThenElseZero(hn::FirstN(d, count), e), d, at);
      }
    }
  }
  /// Compute functions of `count` elements, a multiple of kScanPadding; `to` may alias x.
  HWY_NOINLINE void exps(const R* x, i64 count, R* to) const {
    map(x, count, to, [](auto d, auto v) HWY_ATTR { return exp_of(d, v); });
  }
  HWY_NOINLINE void softplus(const R* x, i64 count, R* to) const {
    map(x, count, to, [](auto d, auto v) HWY_ATTR { return mcpp::HWY_NAMESPACE::softplus(d, v); });
  }
  HWY_NOINLINE void logistic(const R* x, i64 count, R* to) const {
    map(x, count, to, [](auto d, auto v) HWY_ATTR { return mcpp::HWY_NAMESPACE::logistic(d, v); });
  }
  /// Computes g = -a softplus(gates + bias) for rows of `columns` gates, and fills the rest of g [padded_rows, ld] with
  /// 0.
  HWY_NOINLINE void channel_gates(const T* gates, i64 stride, i64 rows, i64 columns, const T* bias, R a, R* g, i64 ld,
                                  i64 padded_rows) const {
    const LaneTag<T> d;
    for (i64 i = 0; i < rows; ++i) {
      sweep(d, 0, columns, [=](i64 j, auto lanes) HWY_ATTR {
        const auto raw = hn::Add(load_lanes(d, gates + i * stride + j, lanes), load_lanes(d, bias + j, lanes));
        mcpp::HWY_NAMESPACE::store(hn::Mul(hn::Set(d, -a), mcpp::HWY_NAMESPACE::softplus(d, raw)), d, g + i * ld + j,
                                   lanes);
      });
      std::fill(g + i * ld + columns, g + (i + 1) * ld, R{0});
    }
    std::fill(g + rows * ld, g + padded_rows * ld, R{0});
  }
  /// Replaces dg, the gradient of g, by the gradient of the gates, and writes the latter to d_gates.
  HWY_NOINLINE void channel_gates_backward(const T* gates, i64 stride, i64 rows, i64 columns, const T* bias, R a, R* dg,
                                           i64 ld, T* d_gates) const {
    const LaneTag<T> d;
    for (i64 i = 0; i < rows; ++i) {
      sweep(d, 0, columns, [=](i64 j, auto lanes) HWY_ATTR {
        const auto raw = hn::Add(load_lanes(d, gates + i * stride + j, lanes), load_lanes(d, bias + j, lanes));
        const auto slope = hn::Mul(hn::Set(d, -a), mcpp::HWY_NAMESPACE::logistic(d, raw));
        const auto gradient = hn::Mul(slope, load_lanes(d, dg + i * ld + j, lanes));
        mcpp::HWY_NAMESPACE::store(gradient, d, dg + i * ld + j, lanes);
        mcpp::HWY_NAMESPACE::store(gradient, d, d_gates + i * stride + j, lanes);
      });
    }
  }
  /// Computes QK and KK of the rows of a block on and below the diagonal. `decayed` is a workspace [ld].
  HWY_NOINLINE void decayed_products(const R* q, const R* k, const R* decay, i64 ld, R* qk, R* kk, i64 ld_products,
                                     R* decayed) const {
    const LaneTag<T> d;
    for (i64 j = 0; j < kScanPadding; ++j) {
      std::copy(k + j * ld, k + (j + 1) * ld, decayed);
      for (i64 i = j; i < kScanPadding; ++i) {
        Sum<LaneTag<T>> with_q, with_k;
        sweep_slots(d, 0, ld, [&](i64 c, auto lanes, int slot) HWY_ATTR {
          auto key = load_lanes(d, decayed + c, lanes);
          if (i > j) {
            key = without_subnormals(d, hn::Mul(key, load_lanes(d, decay + i * ld + c, lanes)));
            mcpp::HWY_NAMESPACE::store(key, d, decayed + c, lanes);
          }
          with_q.add_product(key, load_lanes(d, q + i * ld + c, lanes), slot);
          with_k.add_product(key, load_lanes(d, k + i * ld + c, lanes), slot);
        });
        qk[i * ld_products + j] = with_q.total();
        kk[i * ld_products + j] = with_k.total();
      }
    }
  }
  /// Adds the gradients through decayed_products() to dq, dk and dg, the gradient of the logarithms of the decays.
  HWY_NOINLINE void decayed_products_backward(const BlockProducts<R>& x, i64 ld, R* dq, R* dk, R* dg) const {
    const LaneTag<T> d;
    const i64 lanes = static_cast<i64>(hn::Lanes(d));
    for (i64 c = 0; c < ld; c += lanes) {
      for (i64 j = 0; j < kScanPadding; ++j) products_with_row_backward(x, ld, j, c, dq, dk, dg);
    }
  }

 private:
  /// Replaces subnormal elements by 0. Products of many decays may be subnormal, which slows arithmetic down.
  template <class D>
  static HWY_INLINE hn::Vec<D> without_subnormals(D d, hn::Vec<D> x) {
    return hn::IfThenZeroElse(hn::Lt(hn::Abs(x), hn::Set(d, std::numeric_limits<R>::min())), x);
  }
  /// Adds the gradients through the products of row j with rows j and later, for the channels of one vector.
  static HWY_INLINE void products_with_row_backward(const BlockProducts<R>& x, i64 ld, i64 j, i64 c, R* dq, R* dk,
                                                    R* dg) {
    const LaneTag<T> d;
    const i64 at_j = j * ld + c;
    const auto key = hn::LoadU(d, x.k + at_j), diagonal = hn::Set(d, x.d_qk[j * x.ld + j]);
    hn::StoreU(hn::MulAdd(diagonal, key, hn::LoadU(d, dq + at_j)), d, dq + at_j);
    auto d_key = hn::MulAdd(diagonal, hn::LoadU(d, x.q + at_j), hn::LoadU(d, dk + at_j));
    auto decay = hn::Set(d, R{1});
    R terms[kScanPadding * hn::MaxLanes(d)];
    for (i64 i = j + 1; i < kScanPadding; ++i) {
      const i64 at = i * ld + c;
      decay = without_subnormals(d, hn::Mul(decay, hn::LoadU(d, x.decay + at)));
      const auto d_qk = hn::Set(d, x.d_qk[i * x.ld + j]), d_kk = hn::Set(d, x.d_kk[i * x.ld + j]);
      const auto decayed = hn::Mul(decay, key);
      hn::StoreU(hn::MulAdd(d_qk, decayed, hn::LoadU(d, dq + at)), d, dq + at);
      hn::StoreU(hn::MulAdd(d_kk, decayed, hn::LoadU(d, dk + at)), d, dk + at);
      const auto d_decayed = hn::MulAdd(d_qk, hn::LoadU(d, x.q + at), hn::Mul(d_kk, hn::LoadU(d, x.k + at)));
      d_key = hn::MulAdd(decay, d_decayed, d_key);
      hn::StoreU(hn::Mul(d_decayed, decayed), d, terms + i * static_cast<i64>(hn::Lanes(d)));
    }
    hn::StoreU(d_key, d, dk + at_j);
    auto sum = hn::Zero(d);
    for (i64 i = kScanPadding - 1; i > j; --i) {  // the decay of row i is part of the products with rows from i on
      sum = hn::Add(sum, hn::LoadU(d, terms + i * static_cast<i64>(hn::Lanes(d))));
      hn::StoreU(hn::Add(sum, hn::LoadU(d, dg + i * ld + c)), d, dg + i * ld + c);
    }
  }
  template <class F>
  static HWY_INLINE void map(const R* x, i64 count, R* to, F f) {
    const LaneTag<T> d;
    const i64 lanes = static_cast<i64>(hn::Lanes(d));
    for (i64 i = 0; i < count; i += lanes) hn::StoreU(f(d, hn::LoadU(d, x + i)), d, to + i);
  }
  template <class D, class E, class L>
  static HWY_INLINE hn::Vec<D> load_lanes(D d, const E* from, L lanes) {
    return mcpp::HWY_NAMESPACE::load(d, from, lanes);
  }
};

template <class T>
ScanOperands<T, Lane<T>> scan_operands(const ScanShape& shape, const Tensor& x, const Tensor& p,
                                       const ScanParams& params, const ScanPositions& positions) {
  ScanOperands<T, Lane<T>> operands;
  operands.shape = shape;
  operands.seq = p.dim(0), operands.batch = p.dim(1);
  operands.x = x.data<T>(), operands.p = p.data<T>();
  operands.a_log = params.a_log.data<T>(), operands.dt_bias = params.dt_bias.data<T>();
  if (params.skip.defined()) operands.skip = params.skip.data<T>();
  if (positions.starts.defined()) operands.starts = positions.starts.data<i32>();
  operands.first = positions.first;
  return operands;
}

/// Calls f for a ChunkScan of each group of each sample.
template <class T, class F>
void for_each_group(const CpuDevice& device, const ScanOperands<T, Lane<T>>& operands, F&& f) {
  using R = Lane<T>;
  using Scan = ChunkScan<CpuTeam<T>, T, R>;
  const CpuTeam<T> team;
  const i64 size = Scan::workspace(operands.shape);
  parallel_for(device, operands.batch * operands.shape.groups, 1, [&](i64 begin, i64 end) {
    const std::unique_ptr<R[]> memory(new R[static_cast<std::size_t>(size)]);
    for (i64 task = begin; task < end; ++task) {
      Scan scan(team, operands, task, memory.get());
      f(scan);
    }
  });
}

void gated_scan(const ScanShape& shape, const Tensor& x, const Tensor& p, const ScanParams& params,
                const ScanPositions& positions, Tensor* state, Tensor& y) {
  on_float(p.dtype(), [&]<class T>() {
    ScanOperands<T, Lane<T>> operands = scan_operands<T>(shape, x, p, params, positions);
    operands.y = y.data<T>();
    if (state) operands.state = state->data<Lane<T>>();
    for_each_group<T>(cpu(p), operands, [](auto& scan) { scan.forward(); });
  });
}

void gated_scan_backward(const ScanShape& shape, const Tensor& dy, const Tensor& x, const Tensor& p,
                         const ScanParams& params, const ScanPositions& positions, Tensor& states, Tensor& dx,
                         Tensor& dp, ScanParamGradients& gradients) {
  on_float(p.dtype(), [&]<class T>() {
    using R = Lane<T>;
    ScanOperands<T, R> operands = scan_operands<T>(shape, x, p, params, positions);
    operands.dy = dy.data<T>(), operands.dx = dx.data<T>(), operands.dp = dp.data<T>();
    operands.states = states.data<R>();
    operands.d_a_log = gradients.a_log.data<R>(), operands.d_dt_bias = gradients.dt_bias.data<R>();
    if (gradients.skip.defined()) operands.d_skip = gradients.skip.data<R>();
    for_each_group<T>(cpu(p), operands, [](auto& scan) { scan.backward(); });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(gated_scan);
HWY_EXPORT(gated_scan_backward);

template <>
void ScanKernels<DeviceType::Cpu>::gated_scan(const ScanShape& shape, const Tensor& x, const Tensor& p,
                                              const ScanParams& params, const ScanPositions& positions, Tensor* state,
                                              Tensor& y) {
  HWY_DYNAMIC_DISPATCH(gated_scan)(shape, x, p, params, positions, state, y);
}

template <>
void ScanKernels<DeviceType::Cpu>::gated_scan_backward(const ScanShape& shape, const Tensor& dy, const Tensor& x,
                                                       const Tensor& p, const ScanParams& params,
                                                       const ScanPositions& positions, Tensor& states, Tensor& dx,
                                                       Tensor& dp, ScanParamGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(gated_scan_backward)(shape, dy, x, p, params, positions, states, dx, dp, gradients);
}

}  // namespace mcpp
#endif  // HWY_ONCE
