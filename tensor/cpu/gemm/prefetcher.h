// Software prefetch of memory that a product copies or writes later. Weights and gradients come from main memory, and
// waiting for them on use would take as long as the sums.
#pragma once
#include <algorithm>
#include <array>

#include "base/integer_math.h"
#include "tensor/cpu/gemm/gemm.h"

namespace mcpp::kernel {

class Prefetcher {
 public:
  /// Adds op(x) [rows, columns]: part `part` of `parts` of the rows as stored. At most two calls.
  template <class T>
  void add(Operand<T> x, i64 rows, i64 columns, i64 part = 0, i64 parts = 1) {
    if (x.transposed) std::swap(rows, columns);
    const i64 begin = rows * part / parts, end = rows * (part + 1) / parts, length = columns * i64{sizeof(T)};
    if (begin == end || length == 0) return;
    ranges_[count_++] = {reinterpret_cast<const char*>(x.data + begin * x.ld), length, x.ld * i64{sizeof(T)},
                         end - begin};
    lines_ += (end - begin) * ceil_div(length, kLine);
  }
  /// Distributes all prefetches over the next `steps` calls of step().
  void spread(i64 steps) {
    steps = std::max<i64>(1, steps);
    every_ = left_ = std::max<i64>(1, steps / std::max<i64>(1, lines_));
    at_once_ = ceil_div(lines_, steps);
  }
  /// Sets the offset from the current sums to those computed next from the same rows of a.
  void set_next_sums(i64 offset) { next_sums_ = offset; }

  /// Prefetches the destination of the next sums; called when sums of `rows` x `columns` that are written to c begin.
  template <class R>
  [[gnu::always_inline]] void begin(const R* c, i64 ld, i64 rows, i64 columns) const {
    const char* row = reinterpret_cast<const char*>(c) + next_sums_;
    for (i64 i = 0; i < rows; ++i, row += ld * i64{sizeof(R)}) {
      for (i64 at = 0; at < columns * i64{sizeof(R)}; at += kLine) __builtin_prefetch(row + at, 1);
    }
  }
  /// Issues due prefetches; called in each iteration of the loop over k.
  [[gnu::always_inline]] void step() {
    if (--left_ > 0) return;
    left_ = every_;
    for (i64 i = 0; i < at_once_ && at_ < count_; ++i) issue_prefetch();
  }

 private:
  static constexpr i64 kLine = 64;
  struct Range {
    const char* row;
    i64 length, step, rows;
  };

  void issue_prefetch() {
    Range& range = ranges_[at_];
    __builtin_prefetch(range.row + column_, 0, 2);
    column_ += kLine;
    if (column_ < range.length) return;
    column_ = 0;
    range.row += range.step;
    if (--range.rows == 0) ++at_;
  }

  std::array<Range, 2> ranges_{};
  std::size_t count_ = 0, at_ = 0;
  i64 lines_ = 0, column_ = 0, every_ = 1, left_ = 1, at_once_ = 0, next_sums_ = 0;
};

}  // namespace mcpp::kernel
