// Attention to keys that arrive in parts, as from other ranks.
#include "base/check.h"
#include "tensor/dtype.h"
#include "tests/support/attention.h"

namespace mcpp::test {
namespace {

class AttentionPartsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionPartsTest, every_type(), ops_name);

/// State of rank `rank` of a ring after attending to its own keys and those of all other ranks, computed from the
/// queries, keys and values of the full sequence.
struct RingRank {
  RingRank(const AttentionCall& full, i64 rank, i64 ranks, i64 chunk)
      : at(zigzag(rank, ranks, chunk)), local(rows_of(full, at, chunk)) {
    const Tensor& q = full.x.q.base;
    total.out = Tensor::zeros(local.y.out.shape(), accumulate_dtype(q.dtype()), q.device());
    total.lse = tensor_of(Numbers(static_cast<std::size_t>(local.y.lse.numel()), -HUGE_VAL), local.y.lse.shape(),
                          local.y.lse.dtype(), q.device());
    for (i64 hop = 0; hop < ranks; ++hop) {
      AttentionCall part = with_keys_of(full, (rank + ranks - hop) % ranks, ranks, chunk);
      ops::attention(part.x, part.options, part.y);
      ops::merge_attention(part.y, total);
    }
  }
  /// Returns this rank's queries with the keys of a different rank.
  AttentionCall with_keys_of(const AttentionCall& full, i64 other, i64 ranks, i64 chunk) const {
    const PositionRanges keys_at = zigzag(other, ranks, chunk);
    AttentionCall part = local;
    const AttentionCall remote = rows_of(full, keys_at, chunk);
    part.x.k = remote.x.k, part.x.v = remote.x.v, part.dx.k = remote.dx.k, part.dx.v = remote.dx.v;
    part.options.keys = keys_at;
    return part;
  }
  /// Returns the rows of a call at positions `at`, and buffers for their results.
  static AttentionCall rows_of(const AttentionCall& full, const PositionRanges& at, i64 chunk) {
    const auto rows = [&](const Tensor& x) {
      const i64 row = x.numel() / x.dim(0);
      Shape shape = x.shape();
      shape[0] = 2 * chunk;
      Tensor part = Tensor::like(x, shape);
      for (i64 s = 0; s < 2 * chunk; ++s) {
        Tensor to = part.flat(s * row, row);
        ops::copy(x.flat(at.at(s) * row, row), to);
      }
      return part;
    };
    const auto copies = [&](const QkvHeads& x) {
      return QkvHeads{dense_heads(rows(x.q.base)), dense_heads(rows(x.k.base)), dense_heads(rows(x.v.base))};
    };
    AttentionCall part = full;
    part.x = copies(full.x), part.dx = copies(full.dx);
    part.dout = rows(full.dout), part.y.out = rows(full.y.out);
    part.y.lse = Tensor::like(full.y.lse, {full.y.lse.dim(0), full.y.lse.dim(1), 2 * chunk});
    part.options.queries.ranges = at;
    if (full.options.queries.starts.defined()) {
      std::vector<i32> starts;
      const std::vector<i32> all = read_values<i32>(full.options.queries.starts);
      const i64 batch = full.x.q.batch;
      for (i64 t = 0; t < 2 * chunk * batch; ++t)
        starts.push_back(all[static_cast<std::size_t>(at.at(t / batch) * batch + t % batch)]);
      part.options.queries.starts = integers_of(starts, full.dout.device()).view({2 * chunk, batch});
    }
    return part;
  }

  PositionRanges at;
  AttentionCall local;
  AttentionResult total;
};

/// Returns the rows of `truth`, [s, row], at positions `at`.
std::vector<double> rows_at(const std::vector<double>& truth, const PositionRanges& at, i64 rows, i64 length) {
  const i64 row = static_cast<i64>(truth.size()) / length;
  std::vector<double> part;
  for (i64 s = 0; s < rows; ++s) {
    const auto from = truth.begin() + at.at(s) * row;
    part.insert(part.end(), from, from + row);
  }
  return part;
}

/// Emulates a ring: partial results for parts of the keys, of which some queries see none, merge to attention over all
/// keys, and gradients of the parts, computed with the merged result, add up.
TEST_P(AttentionPartsTest, MergeToFullAttention) {
  constexpr i64 kRanks = 3, kChunk = 23, kLength = 2 * kRanks * kChunk;
  for (const i64 seen : {0, 1, 2, 3}) {
    const i64 documents = seen % 2 * 3, window = seen / 2 * 40;
    SCOPED_TRACE(str(documents, " documents, window ", window));
    AttentionCall full({{kLength, kLength, 2, 4, 2, 24}, {}, {}, 0, 1, documents, 1, window}, dtype(), any_device(),
                       target().first);
    const AttentionTruth truth(full);
    const AttentionTolerance t = attention_tolerance(dtype());
    Numbers dk(truth.dk.size());
    const auto of = [](const Numbers& x) { return [&x](i64 i) { return x[static_cast<std::size_t>(i)]; }; };
    for (i64 rank = 0; rank < kRanks; ++rank) {
      RingRank ring(full, rank, kRanks, kChunk);
      EXPECT_LT(attention_error(rows_at(truth.out, ring.at, 2 * kChunk, kLength), ring.total.out), t.out);
      ops::copy(ring.total.out, ring.local.y.out);
      Numbers dq(static_cast<std::size_t>(ring.local.dx.q.base.numel()));
      for (i64 other = 0; other < kRanks; ++other) {
        AttentionCall part = ring.with_keys_of(full, other, kRanks, kChunk);
        part.y = {ring.local.y.out, ring.total.lse};
        ops::attention_backward(part.dout, part.x, part.y, part.options, part.dx);
        const Numbers dq_part = to_doubles(part.dx.q.base), dk_part = to_doubles(part.dx.k.base);
        for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += dq_part[i];
        const i64 row = static_cast<i64>(dk_part.size()) / (2 * kChunk);
        for (std::size_t i = 0; i < dk_part.size(); ++i) {
          const i64 s = static_cast<i64>(i) / row;
          dk[static_cast<std::size_t>(part.options.keys.at(s) * row) + i % static_cast<std::size_t>(row)] += dk_part[i];
        }
      }
      EXPECT_LT(attention_error(rows_at(truth.dq, ring.at, 2 * kChunk, kLength), of(dq)), t.gradient) << "dq";
    }
    EXPECT_LT(attention_error(truth.dk, of(dk)), t.gradient) << "dk";
  }
}

/// Low-precision results are rounded from the results in the accumulate type.
TEST_P(AttentionPartsTest, LowPrecisionResultsAreRoundedFromAccumulateType) {
  const AttentionCase c{{70, 70, 2, 4, 2, 24}, {}, {}, 0, 1, 3};
  AttentionCall narrow(c, dtype(), any_device(), target().first), wide_one = narrow;
  narrow.run();
  const auto widened = [&](Tensor& t) { t = garbage(t.shape(), accumulate_dtype(), t.device()); };
  widened(wide_one.y.out);
  widened(wide_one.dx.k.base), widened(wide_one.dx.v.base);  // dq stays in low precision: each output has its own type
  wide_one.dx.k = dense_heads(wide_one.dx.k.base), wide_one.dx.v = dense_heads(wide_one.dx.v.base);
  ops::attention(wide_one.x, wide_one.options, wide_one.y);
  ops::attention_backward(wide_one.dout, wide_one.x, narrow.y, wide_one.options, wide_one.dx);
  const auto expect_rounded = [&](const Tensor& from, const Tensor& to, const char* what) {
    Tensor rounded = Tensor::like(to);
    ops::copy(from, rounded);
    EXPECT_EQ(to_doubles(rounded), to_doubles(to)) << what;
  };
  expect_rounded(wide_one.y.out, narrow.y.out, "out");
  expect_rounded(wide_one.dx.k.base, narrow.dx.k.base, "dk");
  expect_rounded(wide_one.dx.v.base, narrow.dx.v.base, "dv");
  EXPECT_EQ(to_doubles(wide_one.dx.q.base), to_doubles(narrow.dx.q.base));
}

/// Returns every element of heads in the order of [seq, batch, heads, head_dim].
Numbers elements_of(const Heads& x) {
  const HeadNumbers at(x);
  Numbers all;
  for (i64 s = 0; s < x.seq; ++s)
    for (i64 b = 0; b < x.batch; ++b)
      for (i64 head = 0; head < x.heads; ++head)
        for (i64 d = 0; d < x.head_dim; ++d) all.push_back(at(s, b, head, d));
  return all;
}

TEST_P(AttentionPartsTest, CopiesHeadsBetweenAnyViews) {
  constexpr i64 kSeq = 5, kBatch = 2, kDim = 6;
  // Twelve query heads in groups of 6, in groups of 4, and dense.
  const auto fused = [&](i64 groups, u64 seed) {
    return packed_heads(random_tensor({kSeq, kBatch, groups, 12 / groups + 2, kDim}, dtype(), any_device(), seed));
  };
  const Heads sources[]{fused(2, 1).q, fused(3, 2).q,
                        mcpp::dense_heads(random_tensor({kSeq, kBatch, 12 * kDim}, dtype(), any_device(), 3), 12)};
  for (const Heads& from : sources) {
    for (const DType type : {dtype(), accumulate_dtype()}) {
      Heads to = packed_heads(garbage({kSeq, kBatch, 3, 6, kDim}, type, any_device())).q;
      ops::copy_heads(from, to);
      EXPECT_EQ(elements_of(to), elements_of(from));
      EXPECT_EQ(elements_of(slice_heads(to, 4, 4)), elements_of(slice_heads(mcpp::dense_heads(to.base, 18), 6, 4)));
      const Heads odd = strided_heads(dense_heads(garbage({kSeq, kBatch, 8, kDim}, type, any_device())), 1, 2);
      Heads fifth = slice_heads(odd, 2, 1);
      ops::copy_heads(slice_heads(from, 0, 1), fifth);
      EXPECT_EQ(elements_of(slice_heads(odd, 2, 1)), elements_of(slice_heads(from, 0, 1)));
    }
  }
  Heads few = slice_heads(sources[2], 0, 4);
  EXPECT_THROW(ops::copy_heads(sources[0], few), Error);
  EXPECT_THROW(slice_heads(sources[0], 3, 6), Error) << "from the middle of one group to that of the next";
  EXPECT_THROW(strided_heads(sources[2], 0, 5), Error);
}

TEST_P(AttentionPartsTest, MergesExtremeValues) {
  const double inf = std::numeric_limits<double>::infinity();
  const Numbers totals{-inf, -inf, 5, 700, -700, 3e4}, parts{-inf, 2, -inf, -700, 700, 3e4};
  const auto outputs = run([&](Device& device) {
    const AttentionResult part{tensor_of(Numbers(12, 4.0), {6, 1, 2}, dtype(), device),
                               tensor_of(parts, {1, 1, 6}, accumulate_dtype(), device)};
    AttentionResult total{tensor_of({0, 0, 0, 0, 8, 8, 8, 8, 8, 8, 8, 8}, {6, 1, 2}, dtype(), device),
                          tensor_of(totals, {1, 1, 6}, accumulate_dtype(), device)};
    ops::merge_attention(part, total);
    return std::vector{total.out, total.lse};
  });
  expect_close(outputs[0], {0, 0, 4, 4, 8, 8, 8, 8, 4, 4, 6, 6}, tolerance(dtype()), 1, "out");
  expect_close(outputs[1], {-inf, 2, 5, 700, 700, 3e4 + std::log(2.0)}, tolerance(accumulate_dtype()), 1, "lse");
}

}  // namespace
}  // namespace mcpp::test
