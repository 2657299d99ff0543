#include "tensor/ops/attention_blocks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor/dtype.h"

namespace mcpp {
namespace {

/// Allocates a dense gradient for heads like x in the accumulate dtype.
Heads accumulate_like(const Heads& x) {
  const DType type = accumulate_dtype(x.base.dtype());
  return dense_heads(
      Tensor::empty({x.seq, x.batch, x.heads, x.head_dim}, type, x.base.device(), MemoryClass::Workspace), x.heads);
}

/// Copies columns [first, first + count) of lse [b, heads, s].
Tensor slice_queries(const Tensor& lse, i64 first, i64 count) {
  const i64 all = lse.dim(2), rows = lse.dim(0) * lse.dim(1);
  Tensor part = Tensor::empty({lse.dim(0), lse.dim(1), count}, lse.dtype(), lse.device(), MemoryClass::Workspace);
  Heads to{part, 0, rows, 1, 1, count, 1, count, count, count};
  ops::copy_heads({lse, first, rows, 1, 1, count, 1, all, count, count}, to);
  return part;
}

/// Sum of parts; the first part is written directly to the result.
class GradientSum {
 public:
  explicit GradientSum(const Heads& sum) : sum_(sum) {}

  /// Returns the memory for the next part.
  Heads next_part() const { return has_parts_ ? accumulate_like(sum_) : sum_; }
  void add(const Heads& part) {
    if (std::exchange(has_parts_, true)) ops::add_to(part.base, sum_.base);
  }
  /// Returns the sum; zero if there were no parts.
  const Heads& sum() {
    if (!std::exchange(has_parts_, true)) ops::fill_zero(sum_.base);
    return sum_;
  }

 private:
  Heads sum_;
  bool has_parts_ = false;
};

/// Creates one sum per block of `rows` rows of `all`, a dense tensor.
std::vector<GradientSum> make_gradient_sums(const Heads& all, i64 rows) {
  std::vector<GradientSum> totals;
  for (i64 begin = 0; begin < all.seq; begin += rows) {
    const Tensor block = all.base.slice(begin, std::min(begin + rows, all.seq));
    totals.emplace_back(dense_heads(block, all.heads));
  }
  return totals;
}

/// Queries [first, first + count) with their outputs and gradients.
struct QueryBlock {
  Heads q;
  AttentionResult y;
  Tensor dout;
  AttentionOptions options;

  QueryBlock(const Tensor& d_out, const Heads& all, const AttentionResult& result, const AttentionOptions& all_options,
             i64 first, i64 count)
      : q(slice_rows(all, first, count)),
        y{result.out.slice(first, first + count), slice_queries(result.lse, first, count)},
        dout(d_out.slice(first, first + count)),
        options(all_options) {
    options.queries = all_options.queries.slice(first, first + count);
  }
  i64 last_position() const { return options.queries.ranges.at(q.seq - 1); }
};

}  // namespace

Heads slice_rows(const Heads& x, i64 first, i64 count) {
  MCPP_CHECK(first >= 0 && count >= 0 && first + count <= x.seq, "rows ", first, " to ", first + count, " of ", x.seq);
  Heads part = x;
  part.offset += first * x.seq_stride;
  part.seq = count;
  return part;
}

bool attention_backward_by_blocks(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                  const AttentionOptions& options, QkvHeads& dx, i64 rows,
                                  const BlockBackward& backward) {
  MCPP_CHECK(rows > 0, "blocks of ", rows, " rows");
  const Heads dk = accumulate_like(x.k), dv = accumulate_like(x.v);
  std::vector<GradientSum> dks = make_gradient_sums(dk, rows), dvs = make_gradient_sums(dv, rows);
  for (i64 first = 0; first < x.q.seq; first += rows) {
    QueryBlock block(dout, x.q, y, options, first, std::min(rows, x.q.seq - first));
    GradientSum dq(accumulate_like(block.q));
    for (i64 key = 0; key < x.k.seq && options.keys.at(key) <= block.last_position(); key += rows) {
      GradientSum &dk_sum = dks[static_cast<std::size_t>(key / rows)],
                  &dv_sum = dvs[static_cast<std::size_t>(key / rows)];
      const i64 count = std::min(rows, x.k.seq - key);
      block.options.keys = options.keys.from(key);
      QkvHeads part{dq.next_part(), dk_sum.next_part(), dv_sum.next_part()};
      const QkvHeads operands{block.q, slice_rows(x.k, key, count), slice_rows(x.v, key, count)};
      if (!backward(block.dout, operands, block.y, block.options, part)) return false;
      dq.add(part.q), dk_sum.add(part.k), dv_sum.add(part.v);
    }
    Heads to = slice_rows(dx.q, first, block.q.seq);
    ops::copy_heads(dq.sum(), to);
  }
  for (std::vector<GradientSum>* totals : {&dks, &dvs}) {
    for (GradientSum& total : *totals) total.sum();
  }
  ops::copy_heads(dk, dx.k);
  ops::copy_heads(dv, dx.v);
  return true;
}

}  // namespace mcpp
