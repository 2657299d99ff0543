#include "tests/support/attention.h"

#include "tensor/cpu/attention/attention_problem.h"
#include "tests/support/gradcheck.h"

namespace mcpp::test {
namespace {

class AttentionTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, AttentionTest, every_type(), ops_name);

const std::vector<AttentionCase> kCases{
    {{1, 1, 1, 1, 1, 8}},
    {{2, 2, 2, 2, 1, 16}},
    {{5, 5, 1, 2, 2, 32}},
    {{31, 31, 2, 2, 1, 40}},
    {{32, 32, 1, 1, 1, 64}},
    {{33, 33, 1, 2, 1, 64}, after(32)},  // every query sees every key
    {{63, 63, 1, 1, 1, 128}},
    {{64, 64, 2, 4, 2, 64}},
    {{65, 65, 1, 2, 1, 20}},
    {{97, 97, 1, 2, 2, 64}},
    {{128, 128, 1, 2, 2, 32}},
    {{130, 130, 3, 4, 1, 16}},
    {{130, 130, 1, 2, 2, 128}, after(200)},
    {{7, 70, 2, 2, 1, 64}, after(70)},
    {{100, 33, 1, 2, 2, 64}, after(33)},
    {{1, 130, 2, 4, 2, 64}, after(129)},
    {{3, 200, 1, 4, 1, 40}, after(100)},  // keys beyond the last query are never visible
    {{2, 77, 1, 2, 2, 20}, after(77)},
    {{40, 140, 1, 4, 2, 64}, after(100)},
    {{70, 90, 1, 2, 1, 32}, after(17)},
    {{66, 200, 1, 2, 2, 8}, after(40)},
    {{1, 1, 1, 1, 1, 1}, {}, {}, 0.5f},
    {{50, 50, 2, 2, 1, 24}, {}, {}, 0.1f},
    {{130, 130, 1, 2, 2, 64}, {}, {}, 0.3f},
    {{70, 90, 2, 2, 1, 40}, after(17), {}, 0.2f},
    {{65, 129, 1, 2, 1, 32}, after(128), {}, 0.9f},
    // Zigzag: a rank's queries with its own keys, with keys of an earlier rank, and with those of a later one.
    {{96, 96, 1, 2, 1, 32}, zigzag(1, 3, 48), zigzag(1, 3, 48)},
    {{100, 100, 2, 2, 1, 64}, zigzag(2, 3, 50), zigzag(0, 3, 50), 0.2f},
    {{140, 140, 1, 4, 2, 40}, zigzag(0, 2, 70), zigzag(1, 2, 70), 0.2f},
    {{70, 70, 1, 2, 1, 64}, {}, after(70)},  // no key is visible
    {{2, 40, 1, 2, 2, 16}, after(10), after(11)},
    {{70, 140, 1, 1, 1, 16}, {30, 20, 150}, {}, 0, 1, 2},  // all keys: the visible ones have a gap within a block of
                                                           // queries
    {{200, 200, 2, 2, 1, 64}, {}, {}, 0, 1, 4},
    {{200, 200, 1, 2, 1, 32}, {}, {}, 0.1f, 1, 40},
    {{150, 150, 3, 4, 2, 64}, zigzag(1, 2, 75), zigzag(1, 2, 75), 0, 1, 3},
    {{1, 130, 2, 4, 2, 64}, after(129), {}, 0, 1, 2},
    {{3, 70, 2, 2, 1, 24}, after(67), {}, 0, 1, 30},
    {{5, 5, 1, 2, 2, 32}, {}, {}, 0, 1, 0, 1, 1},  // each query sees only its own key
    {{130, 130, 2, 4, 2, 64}, {}, {}, 0, 1, 0, 1, 20},
    {{200, 200, 1, 2, 1, 32}, {}, {}, 0.2f, 1, 0, 1, 64},
    {{300, 300, 1, 2, 2, 16}, {}, {}, 0, 1, 0, 1, 65},
    {{200, 200, 1, 2, 1, 40}, {}, {}, 0, 1, 0, 1, 1000},  // wider than all keys
    {{200, 200, 2, 2, 1, 64}, {}, {}, 0.1f, 1, 4, 1, 33},
    {{150, 150, 2, 4, 2, 24}, zigzag(1, 2, 75), zigzag(1, 2, 75), 0.1f, 1, 3, 1, 50},
    {{140, 140, 1, 4, 2, 40}, zigzag(1, 2, 70), zigzag(0, 2, 70), 0, 1, 0, 1, 90},
    {{70, 70, 1, 2, 1, 16}, after(500), {}, 0, 1, 0, 1, 100},  // all keys are before every window
    {{1, 300, 2, 4, 2, 64}, after(299), {}, 0, 1, 0, 1, 70},
    {{3, 70, 2, 2, 1, 24}, after(67), {}, 0, 1, 2, 1, 5},
    {{70, 300, 1, 2, 1, 24}, after(230), {}, 0, 1, 0, 1, 100},
    {{130, 130, 2, 4, 2, 64}, {}, {}, 0, 2, 0, 1, 0, 1.5},  // with a soft cap
    {{150, 150, 1, 4, 2, 24}, zigzag(1, 2, 75), zigzag(1, 2, 75), 0.1f, 1, 3, 1, 50, 0.35},
    {{70, 70, 1, 2, 1, 64}, {}, after(70), 0, 1, 0, 1, 0, 2},  // no key is visible
    {{3, 70, 2, 2, 1, 24}, after(67), {}, 0, 2, 2, 1, 5, 1},
    // Values and keys of different widths.
    {{130, 130, 1, 2, 2, 192, 128}},
    {{70, 70, 2, 4, 2, 24, 9}, {}, {}, 0.1f, 1, 3, 1, 50, 0.7},
    {{97, 140, 1, 4, 1, 20, 72}, after(43)},
    {{2, 130, 1, 4, 1, 72, 40}, after(128)},
    {{1, 70, 2, 2, 2, 8, 65}, after(69), {}, 0, 1, 2},
    {{140, 140, 1, 4, 2, 40, 16}, zigzag(0, 2, 70), zigzag(1, 2, 70), 0.2f},
};

TEST_P(AttentionTest, MatchesSoftmaxOfScoresTimesValues) {
  for (const AttentionCase& c : kCases) {
    SCOPED_TRACE(describe(c, dtype()));
    AttentionCall call(c, dtype(), any_device(), target().first);
    call.run();
    expect_truth(call, attention_tolerance(dtype()));
  }
}

TEST_P(AttentionTest, MatchesReferenceForRandomPositions) {
  for (u64 seed = 0; seed < 12; ++seed) {
    const auto draw = [&](const char* what, i64 below) {
      return static_cast<i64>(philox_key(seed, what) % static_cast<u64>(below));
    };
    const AttentionSizes n{
        1 + draw("queries", 150), 1 + draw("keys", 150), 1 + draw("batch", 2), 2, 1 + draw("groups", 2), 24};
    const AttentionCase c{n,
                          random_ranges(n.queries, 2 * seed),
                          random_ranges(n.keys, 2 * seed + 1),
                          draw("drops", 3) == 0 ? 0.2f : 0,
                          1,
                          draw("documents", 6),
                          seed,
                          draw("has_window", 2) * (60 + draw("window", 150))};
    SCOPED_TRACE(describe(c, dtype()));
    AttentionCall call(c, dtype(), any_device(), target().first);
    call.run();
    expect_truth(call, attention_tolerance(dtype()));
  }
}

TEST_P(AttentionTest, ReadsAndWritesPackedHeads) {
  for (const AttentionSizes& n :
       {AttentionSizes{70, 70, 2, 4, 4, 64}, AttentionSizes{70, 70, 2, 6, 2, 40}, AttentionSizes{33, 33, 1, 4, 1, 8},
        AttentionSizes{128, 128, 2, 4, 2, 64}, AttentionSizes{70, 70, 2, 4, 4, 24, 10}}) {
    AttentionCall call = AttentionCall::packed({n}, dtype(), any_device(), target().first);
    call.run();
    expect_truth(call, attention_tolerance(dtype()));
  }
}

TEST_P(AttentionTest, IsBitwiseIdenticalForAnyThreadCount) {
  for (const AttentionCase& c :
       {AttentionCase{{200, 200, 1, 4, 1, 64}}, AttentionCase{{100, 100, 2, 4, 2, 40}, {}, {}, 0.1f},
        AttentionCase{{150, 150, 2, 2, 1, 64}, zigzag(1, 2, 75), zigzag(1, 2, 75), 0, 1, 3},
        AttentionCase{{200, 200, 1, 4, 2, 64}, {}, {}, 0.1f, 1, 0, 1, 50},
        AttentionCase{{1, 300, 1, 4, 2, 64}, after(299)}}) {
    run([&](Device& device) {
      AttentionCall call(c, dtype(), device, target().first);
      call.run();
      return std::vector<Tensor>{call.y.out, call.y.lse, call.dx.q.base, call.dx.k.base, call.dx.v.base};
    });
  }
}

TEST_P(AttentionTest, SurvivesExtremeScores) {
  for (float magnitude : {0.f, 40.f, 1000.f}) {
    AttentionCall call({{70, 70, 1, 2, 1, 64}, {}, {}, 0, magnitude}, dtype(), any_device(), target().first);
    call.run();
    // In fp32, scores near 1e6 are only accurate to 0.1; the probabilities must still be valid.
    if (magnitude < 100 && !is_low_precision(dtype())) expect_truth(call, {2e-3, 2e-6, 2e-2});
    for (const double x : to_doubles(call.y.out)) ASSERT_LT(std::abs(x), 6);
    for (const Heads* heads : {&call.dx.q, &call.dx.k, &call.dx.v}) {
      for (const double x : to_doubles(heads->base)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST_P(AttentionTest, PropagatesNaN) {
  for (i64 queries : {i64{1}, i64{70}}) {
    AttentionCall call({{queries, queries, 1, 1, 1, 32}}, dtype(), any_device(), target().first);
    Numbers keys = to_doubles(call.x.k.base);
    keys[5] = std::nan("");
    set_values(call.x.k.base, keys);
    call.run();
    EXPECT_TRUE(std::isnan(to_doubles(call.y.out).front()));
    EXPECT_TRUE(std::isnan(to_doubles(call.y.lse).back()));
  }
}

// bf16 is multiplied by AMX where available, otherwise by the vector units.
TEST(Bf16AttentionTest, MatchesReferenceWithoutAmx) {
  CpuDevice device({.threads = 2});
  for (const AttentionCase& c : kCases) {
    SCOPED_TRACE(describe(c, DType::BF16));
    AttentionCall call(c, DType::BF16, device);
    kernel::AttentionProblem<BFloat16> p(call.x, call.options, call.y);
    p.read_forward<BFloat16>(call.y);
    p.read_backward<BFloat16>(call.dout, call.y, call.dx);
    kernel::attention_forward(p, device);
    kernel::attention_backward(p, device);
    expect_truth(call, {0.005, 1e-5, 0.08});
  }
}

TEST(AttentionMemoryTest, MatchesFormulaPerThread) {
  for (const int threads : {1, 3}) {
    for (const DType dtype : {DType::F32, DType::BF16, DType::F64}) {
      CpuDevice device({.threads = threads});
      AttentionCall call({{130, 200, 1, 4, 2, 40}, after(70)}, dtype, device);
      call.run();
      const i64 element = dtype == DType::F64 ? 8 : 4;
      // In blocks of 64 rows, with heads padded to 64: 5 buffers for each of the 3 query and 4 key blocks, and 2 more.
      const i64 thread = (5 * (3 + 4) + 2) * 64 * 64 + 4 * 64 * 64 + 2 * 3 * 64;
      EXPECT_EQ(kernel::attention_backward_bytes({.queries = 130, .keys = 200, .head_dim = 40}, element),
                thread * element);
      const auto peak =
          static_cast<double>(device.memory().by_class[static_cast<std::size_t>(MemoryClass::Workspace)].peak);
      const auto planned = static_cast<double>(threads * thread * element);
      EXPECT_GE(peak, planned) << threads << " threads, " << name_of(dtype);
      EXPECT_LE(peak, 1.08 * planned) << "rounded up for each thread, and by the pool";
    }
  }
}

TEST(AttentionGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  for (const AttentionCase& c :
       {AttentionCase{{9, 9, 2, 4, 2, 8}}, AttentionCase{{70, 90, 1, 2, 1, 8}, after(17), {}, 0.2f},
        AttentionCase{{70, 70, 1, 2, 1, 8}, zigzag(1, 2, 35), zigzag(1, 2, 35), 0, 1, 3},
        AttentionCase{{90, 90, 1, 2, 1, 8}, {}, {}, 0.2f, 1, 2, 1, 11},
        AttentionCase{{70, 70, 1, 2, 1, 8}, {}, {}, 0.1f, 2, 2, 1, 40, 0.9}}) {
    AttentionCall call(c, DType::F64, device);
    call.run();
    const auto loss = [&] {
      ops::attention(call.x, call.options, call.y);
      return dot(call.y.out, call.dout);
    };
    expect_gradient(loss, call.x.q.base, call.dx.q.base, "dq");
    expect_gradient(loss, call.x.k.base, call.dx.k.base, "dk");
    expect_gradient(loss, call.x.v.base, call.dx.v.base, "dv");
  }
}

/// Returns the number of 64 x 64 tiles computed for one head.
i64 visible_tiles(i64 seq, i64 window) {
  CpuDevice device;
  AttentionCall call({{seq, seq, 1, 1, 1, 8}, {}, {}, 0, 1, 0, 1, window}, DType::F32, device);
  const kernel::AttentionProblem<float> p(call.x, call.options, call.y);
  i64 count = 0;
  for (i64 i = 0; i < p.query_blocks(); ++i) {
    for (i64 j = 0; j < p.key_blocks(); ++j)
      count += kernel::visible(p, {0, i * kernel::kTile, j * kernel::kTile}).is_empty() ? 0 : 1;
  }
  return count;
}

TEST(AttentionCostTest, ShrinksWithWindow) {
  constexpr i64 kBlocks = 32, kSeq = kBlocks * kernel::kTile;
  EXPECT_EQ(visible_tiles(kSeq, 0), kBlocks * (kBlocks + 1) / 2);
  EXPECT_EQ(visible_tiles(kSeq, kSeq), kBlocks * (kBlocks + 1) / 2);
  EXPECT_EQ(visible_tiles(kSeq, 1), kBlocks);
  EXPECT_EQ(visible_tiles(kSeq, 65), 2 * kBlocks - 1);  // the first query of a block sees the entire previous block
  EXPECT_EQ(visible_tiles(kSeq, 66), 3 * kBlocks - 3);
  EXPECT_EQ(visible_tiles(8192, 0), 8256);
  EXPECT_EQ(visible_tiles(8192, 512), 1116);
  EXPECT_EQ(visible_tiles(2 * kSeq, 256),
            2 * visible_tiles(kSeq, 256) + 10);  // linear in the length, except at the start
}

/// Tiles outside the window are not read: their NaN values must not reach the output.
TEST_P(AttentionTest, ReadsNoKeyBeforeWindow) {
  constexpr i64 kSeq = 256, kWindow = 40,
                kNan = 128;  // the first keys, invisible to queries from kNan + kWindow on
  AttentionCall call({{kSeq, kSeq, 1, 2, 1, 16}, {}, {}, 0, 1, 0, 1, kWindow}, dtype(), any_device(), target().first);
  Numbers keys = to_doubles(call.x.k.base);
  std::fill_n(keys.begin(), kNan * 16, std::nan(""));
  set_values(call.x.k.base, keys);
  ops::attention(call.x, call.options, call.y);
  const Numbers out = to_doubles(call.y.out);
  for (i64 s = 192; s < kSeq; ++s) {
    for (i64 i = 0; i < 32; ++i) ASSERT_TRUE(std::isfinite(out[static_cast<std::size_t>(s * 32 + i)])) << s;
  }
  EXPECT_TRUE(std::isnan(out[static_cast<std::size_t>(kNan * 32)]));
}

TEST(AttentionArgumentTest, RejectsInvalidArguments) {
  CpuDevice device;
  const auto refuses = [&](auto&& change) {
    AttentionCall call({{4, 4, 2, 2, 1, 8}}, DType::F32, device);
    call.run();
    change(call);
    EXPECT_THROW(call.run(), Error);
  };
  refuses([](AttentionCall& c) { c.options.softmax_scale = -1; });
  refuses([](AttentionCall& c) { c.options.queries.ranges = {.first = 4, .split = 2, .second = 5}; });  // not ascending
  refuses([](AttentionCall& c) { c.options.keys.first = -1; });
  refuses([](AttentionCall& c) { c.options.window = -1; });
  refuses([](AttentionCall& c) { c.options.keys.second = 10; });  // missing end of the first range
  refuses([&](AttentionCall& c) { c.options.queries.starts = integers_of(std::vector<i32>(8), device).view({2, 4}); });
  refuses([&](AttentionCall& c) { c.x.k.seq = 3; });
}

}  // namespace
}  // namespace mcpp::test
