#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/embedding.cpp"
#include <numeric>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Computes to[n] = beta to + row, or beta to if row is null.
template <class T>
void add_row(const T* row, Lane<T>* to, i64 n, float beta) {
  const LaneTag<T> d;
  if (!row && beta == 1) return;
  sweep(d, 0, n, [=](i64 i, auto lanes) {
    const auto old = previous(d, to + i, beta, lanes);
    store(row ? hn::Add(old, load(d, row + i, lanes)) : old, d, to + i, lanes);
  });
}

/// Returns the indices in `tokens` of the rows [first, first + rows), sorted by token and then by index.
std::vector<i64> sorted_by_token(const Tensor& tokens, i64 first, i64 rows) {
  const i32* ids = tokens.data<i32>();
  std::vector<i64> order;
  for (i64 t = 0; t < tokens.numel(); ++t) {
    if (ids[t] >= first && ids[t] < first + rows) order.push_back(t);
  }
  std::stable_sort(order.begin(), order.end(), [=](i64 a, i64 b) { return ids[a] < ids[b]; });
  return order;
}

void embedding_backward(const Tensor& dy, const Tensor& tokens, i64 first_row, Tensor& dtable, float beta) {
  on_float(dy.dtype(), [&]<class T>() {
    const i64 rows = dtable.dim(0), n = dtable.dim(1);
    const std::vector<i64> order = sorted_by_token(tokens, first_row, rows);
    const i32* ids = tokens.data<i32>();
    const T* from = dy.data<T>();
    auto* to = dtable.data<Lane<T>>();
    // Each thread owns rows of the table and adds a row's tokens in order.
    parallel_for(cpu(dy), rows, rows_per_chunk(n), [&](i64 begin, i64 end) {
      auto next = std::lower_bound(order.begin(), order.end(), first_row + begin,
                                   [&](i64 position, i64 id) { return ids[position] < id; });
      for (i64 r = begin; r < end; ++r) {
        bool is_first = true;
        for (; next != order.end() && ids[*next] == first_row + r; ++next, is_first = false)
          add_row(from + *next * n, to + r * n, n, is_first ? beta : 1.0f);
        if (is_first) add_row(static_cast<const T*>(nullptr), to + r * n, n, beta);
      }
    });
  });
}

void add_positions(Tensor& y, const Tensor& table, const Positions& positions) {
  on_float(y.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const i64 batch = y.dim(1), n = y.dim(2);
    const T* from = table.data<T>();
    const i32* starts = positions.starts_or_null();
    T* to = y.data<T>();
    parallel_for(cpu(y), row_count(y), rows_per_chunk(n), [=, &positions](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 at = positions.ranges.at(r / batch) - (starts ? starts[r] : 0);
        sweep(d, 0, n, [row = to + r * n, position = from + at * n, d](i64 i, auto lanes) {
          store(hn::Add(load(d, row + i, lanes), load(d, position + i, lanes)), d, row + i, lanes);
        });
      }
    });
  });
}

/// Returns the table rows read by the tokens, int32 [s, b].
Tensor rows_of_documents(const Positions& positions) {
  const Tensor& starts = positions.starts;
  Tensor rows = Tensor::empty(starts.shape(), DType::I32, starts.device(), MemoryClass::Workspace);
  for (i64 t = 0; t < starts.numel(); ++t)
    rows.data<i32>()[t] = static_cast<i32>(positions.ranges.at(t / starts.dim(1))) - starts.data<i32>()[t];
  return rows;
}

void add_positions_backward(const Tensor& dy, const Positions& positions, Tensor& dtable, float beta) {
  if (positions.starts.defined()) return embedding_backward(dy, rows_of_documents(positions), 0, dtable, beta);
  on_float(dy.dtype(), [&]<class T>() {
    const i64 seq = dy.dim(0), batch = dy.dim(1), n = dy.dim(2);
    const T* from = dy.data<T>();
    auto* to = dtable.data<Lane<T>>();
    const PositionRanges& ranges = positions.ranges;
    parallel_for(cpu(dy), dtable.dim(0), rows_per_chunk(n * std::max<i64>(1, batch)), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 s = ranges.rows_before(r);
        const bool is_used = s < seq && ranges.at(s) == r && batch > 0;
        add_row(is_used ? from + s * batch * n : nullptr, to + r * n, n, beta);
        for (i64 b = 1; is_used && b < batch; ++b) add_row(from + (s * batch + b) * n, to + r * n, n, 1);
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(embedding_backward);
HWY_EXPORT(add_positions);
HWY_EXPORT(add_positions_backward);

template <>
void Kernels<DeviceType::Cpu>::embedding(const Tensor& tokens, const Tensor& table, i64 first_row, Tensor& y) {
  const i64 rows = table.dim(0), row_bytes = table.dim(1) * size_of(table.dtype());
  const i32* ids = tokens.data<i32>();
  const auto* from = static_cast<const std::byte*>(table.raw());
  auto* to = static_cast<std::byte*>(y.raw());
  parallel_for(cpu(y), tokens.numel(), rows_per_chunk(table.dim(1)), [=](i64 begin, i64 end) {
    for (i64 t = begin; t < end; ++t) {
      const i64 row = ids[t] - first_row;
      if (row >= 0 && row < rows)
        std::memcpy(to + t * row_bytes, from + row * row_bytes, row_bytes);
      else
        std::memset(to + t * row_bytes, 0, row_bytes);
    }
  });
}

template <>
void Kernels<DeviceType::Cpu>::embedding_backward(const Tensor& dy, const Tensor& tokens, i64 first_row, Tensor& dtable,
                                                  float beta) {
  HWY_DYNAMIC_DISPATCH(embedding_backward)(dy, tokens, first_row, dtable, beta);
}

template <>
void Kernels<DeviceType::Cpu>::add_positions(Tensor& y, const Tensor& table, const Positions& positions) {
  HWY_DYNAMIC_DISPATCH(add_positions)(y, table, positions);
}

template <>
void Kernels<DeviceType::Cpu>::add_positions_backward(const Tensor& dy, const Positions& positions, Tensor& dtable,
                                                      float beta) {
  HWY_DYNAMIC_DISPATCH(add_positions_backward)(dy, positions, dtable, beta);
}

}  // namespace mcpp
#endif  // HWY_ONCE
