// Largest attention logits of each head: like fp64 scores, however queries and keys are divided.
#include "tensor/ops/attention_logits.h"

#include "tests/support/attention.h"
#include "tests/support/errors.h"

namespace mcpp::test {
namespace {

class AttentionLogitsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionLogitsTest, every_type(), ops_name);

Tensor lowest(i64 heads, DType type, Device& device) {
  Tensor result = Tensor::empty({heads}, accumulate_dtype(type), device);
  set_values(result, Numbers(static_cast<std::size_t>(heads), -std::numeric_limits<double>::infinity()));
  return result;
}

Numbers logits_of(const AttentionCall& call) {
  Tensor largest = lowest(call.x.q.heads, call.x.q.base.dtype(), call.x.q.base.device());
  ops::max_attention_logits(call.x, call.options, largest);
  return to_doubles(largest);
}

Numbers expected_logits(const AttentionCall& call) {
  const HeadNumbers q(call.x.q), k(call.x.k);
  const AttentionOptions& o = call.options;
  std::vector<i32> starts(static_cast<std::size_t>(call.x.q.seq * call.x.q.batch), 0);
  if (o.queries.starts.defined()) starts = read_values<i32>(o.queries.starts);
  Numbers largest(static_cast<std::size_t>(call.x.q.heads), -std::numeric_limits<double>::infinity());
  for (i64 head = 0; head < call.x.q.heads; ++head) {
    for (i64 b = 0; b < call.x.q.batch; ++b) {
      for (i64 s = 0; s < call.x.q.seq; ++s) {
        for (i64 key = 0; key < call.x.k.seq; ++key) {
          const i64 at = o.queries.ranges.at(s), position = o.keys.at(key);
          if (position > at || position < starts[static_cast<std::size_t>(s * call.x.q.batch + b)] ||
              (o.window > 0 && at - position >= o.window))
            continue;
          double dot = 0;
          for (i64 d = 0; d < call.x.q.head_dim; ++d)
            dot += q(s, b, head, d) * k(key, b, head / (call.x.q.heads / call.x.k.heads), d);
          const double score = dot * o.softmax_scale;
          double& to = largest[static_cast<std::size_t>(head)];
          to = std::max(to, o.soft_cap > 0 ? o.soft_cap * std::tanh(score / o.soft_cap) : score);
        }
      }
    }
  }
  return largest;
}

TEST_P(AttentionLogitsTest, MatchFp64Scores) {
  const std::vector<AttentionCase> cases{
      {{128, 128, 2, 4, 2, 32}},
      {{70, 70, 1, 4, 1, 16}},
      {{1, 1, 1, 2, 2, 8}},
      {{3, 90, 1, 4, 2, 16}, after(50)},
      {{40, 140, 1, 4, 2, 24}, after(100)},
      {{96, 96, 2, 2, 1, 16}, {}, {}, 0.2f, 1, 4},  // documents; dropout does not count
      {{96, 96, 1, 2, 1, 16}, {}, {}, 0, 1, 0, 1, 20, 1.5},
      {{130, 130, 1, 3, 3, 72, 40}, {}, {}, 0, 3},
      {{96, 96, 1, 2, 1, 32}, zigzag(1, 3, 48), zigzag(0, 3, 48)},
  };
  for (const AttentionCase& c : cases) {
    SCOPED_TRACE(describe(c, dtype()));
    const AttentionCall call(c, dtype(), any_device(), target().first);
    const Numbers found = logits_of(call), expected = expected_logits(call);
    for (std::size_t h = 0; h < expected.size(); ++h)
      EXPECT_NEAR(found[h], expected[h], (dtype() == DType::F64 ? 1e-13 : 2e-6) * (1 + std::abs(expected[h]))) << h;
  }
}

/// All scores are negative: a maximum that starts from zero, or counts padding, would be wrong.
TEST_P(AttentionLogitsTest, MayBeNegative) {
  AttentionCall call({{5, 5, 1, 1, 1, 8}}, dtype(), any_device(), target().first);
  set_values(call.x.q.base, Numbers(40, 1.0));
  set_values(call.x.k.base, Numbers(40, -0.5));
  EXPECT_NEAR(logits_of(call)[0], -4 / std::sqrt(8.0), 1e-6);
}

TEST_P(AttentionLogitsTest, KeepLargerValueAndIgnoreQueriesWithoutKeys) {
  AttentionCall call({{70, 70, 1, 4, 1, 16}}, dtype(), any_device(), target().first);
  Tensor largest = lowest(4, dtype(), call.x.q.base.device());
  set_values(largest, {1e6, -1e6, 1e6, -1e6});
  ops::max_attention_logits(call.x, call.options, largest);
  const Numbers kept = to_doubles(largest), own = logits_of(call);
  EXPECT_EQ(kept[0], 1e6);
  EXPECT_EQ(kept[1], own[1]);
  const AttentionCall hidden({{70, 70, 1, 2, 1, 16}, {}, after(70)}, dtype(), any_device(), target().first);
  EXPECT_EQ(logits_of(hidden), Numbers(2, -std::numeric_limits<double>::infinity()));
}

TEST_P(AttentionLogitsTest, AreBitwiseIdenticalForPartsOfKeysAndQueries) {
  const AttentionCall whole({{128, 128, 2, 4, 2, 32}}, dtype(), any_device(), target().first);
  Tensor largest = lowest(4, dtype(), whole.x.q.base.device());
  const auto rows = [](Heads x, i64 first, i64 count) {
    x.offset += first * x.seq_stride;
    x.seq = count;
    return x;
  };
  for (const i64 query : {0, 64}) {
    for (i64 key = 0; key <= query; key += 64) {
      AttentionOptions options = whole.options;
      options.queries.ranges = after(query), options.keys = after(key);
      ops::max_attention_logits({rows(whole.x.q, query, 64), rows(whole.x.k, key, 64), rows(whole.x.v, key, 64)},
                                options, largest);
    }
  }
  EXPECT_EQ(to_doubles(largest), logits_of(whole));
}

TEST(AttentionLogitsErrorTest, ReportsResultOfWrongSize) {
  CpuDevice device;
  const AttentionCall call({{8, 8, 1, 2, 1, 8}}, DType::F32, device);
  Tensor largest = lowest(3, DType::F32, device);
  EXPECT_CONTAINS(error_of([&] { ops::max_attention_logits(call.x, call.options, largest); }),
                  "the result is fp32 [3] for 2 heads of fp32");
}

}  // namespace
}  // namespace mcpp::test
