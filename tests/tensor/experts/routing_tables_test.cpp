#include "tensor/ops/routing_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <tuple>

#include "tests/support/errors.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp::test {
namespace {

class ExpertChoicesTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override {
    if (const std::string why = why_missing(GetParam()); !why.empty()) GTEST_SKIP() << why;
    device_ = make_device(GetParam());
  }
  Tensor table(const std::vector<i32>& experts, i64 topk) { return integers_of(experts, *device_).view({-1, topk}); }
  std::vector<i32> counts_of(const Tensor& experts, const ExpertRange& range) {
    Tensor counts = integers_of(std::vector<i32>(static_cast<std::size_t>(range.count), 77), *device_);
    ops::count_choices(experts, range, counts);
    return read_values<i32>(counts);
  }
  /// Returns tokens and slots.
  std::pair<std::vector<i32>, std::vector<i32>> sorted(const Tensor& experts, const ExpertRange& range) {
    const std::vector<i32> counts = counts_of(experts, range);
    const i64 rows = std::accumulate(counts.begin(), counts.end(), i64{0});
    Tensor tokens = Tensor::empty({rows}, DType::I32, *device_), slots = Tensor::like(experts);
    ops::sort_choices(experts, range, tokens, slots);
    return {read_values<i32>(tokens), read_values<i32>(slots)};
  }

  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, ExpertChoicesTest, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(ExpertChoicesTest, AreSortedByExpertThenToken) {
  const Tensor experts = table({2, 0, 1, 2, 0, -1}, 2);  // three tokens, two choices each
  EXPECT_EQ(counts_of(experts, {0, 3}), (std::vector<i32>{2, 1, 2}));
  const auto [tokens, slots] = sorted(experts, {0, 3});
  EXPECT_EQ(tokens, (std::vector<i32>{0, 2, 1, 0, 1}));
  EXPECT_EQ(slots, (std::vector<i32>{3, 0, 2, 4, 1, -1}));
}

TEST_P(ExpertChoicesTest, IgnoreExpertsOutsideRange) {
  const Tensor experts = table({2, 0, 1, 3, 0, 1}, 2);
  EXPECT_EQ(counts_of(experts, {1, 2}), (std::vector<i32>{2, 1}));
  const auto [tokens, slots] = sorted(experts, {1, 2});
  EXPECT_EQ(tokens, (std::vector<i32>{1, 2, 0}));
  EXPECT_EQ(slots, (std::vector<i32>{2, -1, 0, -1, -1, 1}));
}

/// Covers sizes of one warp and several, and one expert and many.
TEST_P(ExpertChoicesTest, MatchStableSort) {
  std::mt19937 random(3);
  for (const i64 choices : {1, 31, 32, 33, 1023, 1024, 1025, 5000, 70000}) {
    for (const i64 experts : {1, 2, 8, 60, 512}) {
      for (const bool is_uneven : {false, true}) {
        SCOPED_TRACE(str(choices, " choices of ", experts, is_uneven ? ", uneven" : ""));
        std::vector<i32> all;
        for (i64 i = 0; i < choices; ++i) {
          const i64 drawn = static_cast<i64>(random()) % (is_uneven ? 3 * experts : experts + 1);
          all.push_back(static_cast<i32>(is_uneven ? std::max<i64>(0, drawn - 2 * experts) : drawn - 1));
        }
        std::vector<i32> order;
        for (i64 i = 0; i < choices; ++i)
          if (all[static_cast<std::size_t>(i)] >= 0) order.push_back(static_cast<i32>(i));
        std::ranges::stable_sort(order, {}, [&](i32 i) { return all[static_cast<std::size_t>(i)]; });
        std::vector<i32> expected_slots(all.size(), -1);
        for (std::size_t row = 0; row < order.size(); ++row)
          expected_slots[static_cast<std::size_t>(order[row])] = static_cast<i32>(row);
        const auto [tokens, slots] = sorted(table(all, 1), {0, experts});
        EXPECT_TRUE(tokens == order);
        EXPECT_TRUE(slots == expected_slots);
      }
    }
  }
}

TEST_P(ExpertChoicesTest, MayBeEmpty) {
  const Tensor none = Tensor::empty({0, 2}, DType::I32, *device_);
  EXPECT_EQ(counts_of(none, {0, 3}), (std::vector<i32>{0, 0, 0}));
  EXPECT_TRUE(sorted(none, {0, 3}).first.empty());
  const auto [tokens, slots] = sorted(table({-1, -1, 5, 5}, 2), {0, 3});
  EXPECT_TRUE(tokens.empty());
  EXPECT_EQ(slots, (std::vector<i32>{-1, -1, -1, -1}));
}

/// Returns the choices that remain after sorting those of each expert.
std::vector<i32> left_of(const std::vector<i32>& experts, const std::vector<float>& weights,
                         const std::vector<i32>& order, i64 topk, const ops::Capacity& capacity) {
  std::vector<i32> kept = experts;
  for (i64 e = 0; e < capacity.num_experts; ++e) {
    std::vector<std::tuple<double, i32, std::size_t>> own;
    for (std::size_t i = 0; i < experts.size(); ++i) {
      const double weight = std::isnan(weights[i]) ? std::numeric_limits<double>::infinity() : weights[i];
      if (experts[i] == e) own.emplace_back(-weight, order[i / static_cast<std::size_t>(topk)], i);
    }
    std::ranges::sort(own);
    for (std::size_t rank = static_cast<std::size_t>(capacity.max_choices); rank < own.size(); ++rank)
      kept[std::get<2>(own[rank])] = -1;
  }
  return kept;
}

/// Covers distinct weights, few different ones, none at all and degenerate values, with tokens in a different order.
TEST_P(ExpertChoicesTest, DropLowestWeightsBeyondCapacity) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> odd{0.0f, -0.0f, 1.0f, -1.0f, kInf, -kInf, kNan, -kNan, 1e-42f, -1e-42f, 1e38f, -1e38f};
  std::mt19937 random(5);
  for (const auto& [tokens, topk, experts] :
       std::vector<std::array<i64, 3>>{{1, 1, 1}, {7, 2, 3}, {1000, 1, 1}, {1500, 2, 8}, {700, 6, 64}, {5000, 2, 2}}) {
    for (const int kind : {0, 1, 2, 3}) {
      SCOPED_TRACE(str(tokens, " tokens, ", topk, " of ", experts, " experts, weights of kind ", kind));
      std::vector<i32> all, order(static_cast<std::size_t>(tokens));
      std::vector<float> weights;
      for (i64 i = 0; i < tokens * topk; ++i) {
        all.push_back(static_cast<i32>(static_cast<i64>(random()) % (experts + 1)) - 1);
        weights.push_back(kind == 0   ? static_cast<float>(random()) * 1e-9f - 1
                          : kind == 1 ? static_cast<float>(random() % 4) / 4
                          : kind == 2 ? 0
                                      : odd[random() % odd.size()]);
      }
      std::iota(order.begin(), order.end(), 0);
      std::ranges::shuffle(order, random);
      Tensor w = Tensor::empty({tokens, topk}, DType::F32, *device_);
      write_values(weights, w);
      for (const i64 max_choices : {i64{1}, tokens * topk / (2 * experts) + 1, tokens * topk}) {
        const ops::Capacity capacity{experts, max_choices};
        const std::vector<i32> expected = left_of(all, weights, order, topk, capacity);
        for (const i64 first : {i64{0}, tokens / 3}) {
          const i64 count = (tokens + 1) / 2;
          Tensor kept = Tensor::empty({count, topk}, DType::I32, *device_);
          ops::drop_overflow(table(all, topk), w, integers_of(order, *device_), capacity, first, kept);
          EXPECT_TRUE(std::ranges::equal(read_values<i32>(kept),
                                         std::span(expected).subspan(static_cast<std::size_t>(first * topk),
                                                                     static_cast<std::size_t>(count * topk))))
              << "at most " << max_choices << ", from token " << first;
        }
      }
    }
  }
}

/// Two tokens in each of two blocks; the groups of the second block are increased by ten.
TEST_P(ExpertChoicesTest, HaveDistinctGroupsInOrderOfOccurrence) {
  const Tensor experts = table({3, 0, 2, 1, -1, 0, 3, 7, 0, 1, 2, 3}, 3);
  const Tensor groups = integers_of({5, 6, 6, 5, -1, 7, 7, 7}, *device_).view({4, 2});  // of experts 0 to 3
  Tensor distinct = Tensor::empty({4, 3}, DType::I32, *device_);
  ops::distinct_groups(experts, {groups, integers_of({0, 10}, *device_)}, distinct);
  EXPECT_EQ(read_values<i32>(distinct), (std::vector<i32>{7, 5, 6, 6, 5, -1, 17, 15, 16, 16, 15, 17}));
  Tensor first = Tensor::empty({4, 1}, DType::I32, *device_);
  ops::distinct_groups(experts, {groups, integers_of({-1, 0}, *device_)}, first);
  EXPECT_EQ(read_values<i32>(first), (std::vector<i32>{-1, -1, 7, 6}));
}

/// Covers several blocks of threads, and sizes around one.
TEST_P(ExpertChoicesTest, HaveDistinctGroupsOfHostReference) {
  std::mt19937 random(7);
  for (const auto& [tokens, topk, experts, width, blocks] :
       std::vector<std::array<i64, 5>>{{1, 1, 1, 1, 1}, {127, 2, 8, 1, 1}, {128, 8, 64, 2, 4}, {3000, 6, 16, 3, 3}}) {
    const auto draw = [&](i64 count, i64 values) {
      std::vector<i32> drawn;
      for (i64 i = 0; i < count; ++i) drawn.push_back(static_cast<i32>(static_cast<i64>(random()) % (values + 1)) - 1);
      return drawn;
    };
    const std::vector<i32> chosen = draw(tokens * topk, experts), groups = draw(experts * width, 6),
                           offsets = draw(blocks, 3);
    const i64 slots = 4;
    std::vector<i32> expected;
    for (i64 t = 0; t < tokens; ++t) {
      std::vector<i32> found;
      const i32 offset = offsets[static_cast<std::size_t>(t / (tokens / blocks))];
      for (i64 i = 0; offset >= 0 && i < topk * width; ++i) {
        const i32 expert = chosen[static_cast<std::size_t>(t * topk + i / width)];
        const i32 group = expert < 0 ? -1 : groups[static_cast<std::size_t>(expert * width + i % width)];
        if (group >= 0 && std::ranges::find(found, group + offset) == found.end()) found.push_back(group + offset);
      }
      found.resize(static_cast<std::size_t>(slots), -1);
      expected.insert(expected.end(), found.begin(), found.end());
    }
    Tensor distinct = Tensor::empty({tokens, slots}, DType::I32, *device_);
    ops::distinct_groups(table(chosen, topk),
                         {integers_of(groups, *device_).view({experts, width}), integers_of(offsets, *device_)},
                         distinct);
    EXPECT_TRUE(read_values<i32>(distinct) == expected) << tokens << " tokens";
  }
}

TEST_P(ExpertChoicesTest, RunsYieldOrderAndInverse) {
  const Tensor runs = integers_of({0, 0, 2, 5, 2, 1, 2, 3, 3, 6, 6, 0}, *device_).view({4, 3});
  Tensor order = Tensor::empty({6}, DType::I32, *device_), inverse = Tensor::like(order);
  ops::permutation_from_runs(runs, order, inverse);
  EXPECT_EQ(read_values<i32>(order), (std::vector<i32>{0, 1, 5, 2, 3, 4}));
  EXPECT_EQ(read_values<i32>(inverse), (std::vector<i32>{0, 1, 3, 4, 5, 2}));
}

TEST_P(ExpertChoicesTest, RejectInvalidArguments) {
  const Tensor experts = table({2, 0, 1, 3}, 2);
  EXPECT_NE(error_of([&] { counts_of(experts, {0, 0}); }), "");
  EXPECT_NE(error_of([&] { counts_of(experts, {-1, 2}); }), "");
  Tensor counts = Tensor::empty({3}, DType::I32, *device_), floats = Tensor::empty({4}, DType::F32, *device_),
         slots = Tensor::like(experts), tokens = Tensor::empty({4}, DType::I32, *device_);
  EXPECT_NE(error_of([&] { ops::count_choices(experts, {0, 4}, counts); }), "");
  EXPECT_NE(error_of([&] { ops::count_choices(floats, {0, 3}, counts); }), "");
  EXPECT_NE(error_of([&] { ops::sort_choices(experts, {0, 4}, floats, slots); }), "");
  EXPECT_NE(error_of([&] { ops::sort_choices(experts, {0, 4}, tokens, counts); }), "");
  EXPECT_NE(error_of([&] { ops::permutation_from_runs(slots, tokens, tokens); }), "");
  const ops::ExpertGroups groups{integers_of({0, 1, 0, 1}, *device_).view({4, 1}), integers_of({0}, *device_)};
  EXPECT_EQ(error_of([&] { ops::distinct_groups(experts, groups, slots); }), "");
  EXPECT_NE(error_of([&] { ops::distinct_groups(experts, groups, tokens); }), "") << "not a matrix";
  EXPECT_NE(error_of([&] {
              ops::distinct_groups(experts, {groups.groups, integers_of({0, 0, 0}, *device_)}, slots);
            }),
            "")
      << "three blocks of two tokens";
  EXPECT_NE(error_of([&] { ops::distinct_groups(experts, {floats, groups.offsets}, slots); }), "");
  Tensor kept = Tensor::like(experts), order = Tensor::empty({2}, DType::I32, *device_);
  EXPECT_EQ(error_of([&] { ops::drop_overflow(experts, floats, order, {4, 4}, 0, kept); }), "");
  EXPECT_NE(error_of([&] { ops::drop_overflow(experts, floats, order, {0, 1}, 0, kept); }), "");
  EXPECT_NE(error_of([&] { ops::drop_overflow(experts, floats, order, {4, 0}, 0, kept); }), "");
  EXPECT_NE(error_of([&] { ops::drop_overflow(experts, floats, order, {4, 1}, 1, kept); }), "");
  EXPECT_NE(error_of([&] { ops::drop_overflow(experts, floats, tokens, {4, 1}, 0, kept); }), "");
  EXPECT_NE(error_of([&] { ops::drop_overflow(experts, tokens, order, {4, 1}, 0, kept); }), "");
}

/// Each expert has its own rows, and the unused ones are -1. Agrees with sort_choices().
TEST_P(ExpertChoicesTest, ArePlacedInFixedRows) {
  std::mt19937 random(5);
  for (const i64 choices : {1, 33, 1025, 5000}) {
    for (const i64 experts : {1, 8, 60}) {
      std::vector<i32> all;
      for (i64 i = 0; i < choices; ++i) all.push_back(static_cast<i32>(random() % static_cast<u32>(experts + 2)) - 1);
      const Tensor chosen = table(all, 1);
      const ExpertRange range{experts / 2, experts - experts / 2};
      const std::vector<i32> counts = counts_of(chosen, range);
      const i64 rows = std::ranges::max(counts) + 1;
      const auto [sorted_tokens, sorted_slots] = sorted(chosen, range);
      std::vector<i32> expected_tokens, expected_slots(all.size(), -1);
      for (i64 e = 0, row = 0; e < range.count; ++e) {
        for (i64 i = 0; i < rows; ++i) {
          const bool is_used = i < counts[static_cast<std::size_t>(e)];
          expected_tokens.push_back(is_used ? sorted_tokens[static_cast<std::size_t>(row++)] : -1);
          if (is_used)
            expected_slots[static_cast<std::size_t>(expected_tokens.back())] = static_cast<i32>(e * rows + i);
        }
      }
      Tensor tokens = integers_of(std::vector<i32>(expected_tokens.size(), 77), *device_), slots = Tensor::like(chosen);
      ops::place_choices(chosen, range, rows, tokens, slots);
      EXPECT_EQ(read_values<i32>(tokens), expected_tokens) << choices << " choices of " << experts;
      EXPECT_EQ(read_values<i32>(slots), expected_slots) << choices << " choices of " << experts;
    }
  }
}

/// The host reports choices beyond the rows of an expert. A GPU cannot, but must not write beyond the table.
TEST_P(ExpertChoicesTest, BeyondFixedRowsAreNotPlaced) {
  const Tensor chosen = table({1, 0, 1, 1}, 1);
  Tensor tokens = integers_of({7, 7, 7, 7}, *device_), slots = Tensor::like(chosen);
  const auto place = [&] { ops::place_choices(chosen, {0, 2}, 2, tokens, slots); };
  if (GetParam() == DeviceType::Cpu) {
    EXPECT_NE(error_of(place), "");
    return;
  }
  place();
  EXPECT_EQ(read_values<i32>(tokens), (std::vector<i32>{1, -1, 0, 2}));
  EXPECT_EQ(read_values<i32>(slots), (std::vector<i32>{2, 0, 3, -1}));
}

TEST_P(ExpertChoicesTest, OfNoTokenLeaveRowsEmpty) {
  const Tensor none = Tensor::empty({0, 2}, DType::I32, *device_);
  Tensor tokens = integers_of({7, 7}, *device_), slots = Tensor::like(none);
  ops::place_choices(none, {0, 2}, 1, tokens, slots);
  EXPECT_EQ(read_values<i32>(tokens), (std::vector<i32>{-1, -1}));
}

class PaddedOrderTest : public ExpertChoicesTest {
 protected:
  std::pair<std::vector<i32>, std::vector<i32>> order(const Tensor& counts, const ExpertRange& range,
                                                      const ops::PaddedRows& rows) {
    const auto table = [&](i64 n) { return integers_of(std::vector<i32>(static_cast<std::size_t>(n), 77), *device_); };
    Tensor order = table(range.count * rows.per_expert), inverse = table(counts.dim(0) * range.count * rows.per_rank);
    ops::order_padded_rows(counts, range, rows, order, inverse);
    return {read_values<i32>(order), read_values<i32>(inverse)};
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, PaddedOrderTest, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

/// Two ranks send up to two rows to each of the experts 1 and 2.
TEST_P(PaddedOrderTest, IsByExpertThenRankThenPadding) {
  const auto [order_of_rows, inverse] =
      order(table({5, 1, 2, 0, 5, 2, 0, 0}, 4), {1, 2}, {.per_rank = 2, .per_expert = 3});
  EXPECT_EQ(order_of_rows, (std::vector<i32>{0, 4, 5, 2, 3, -1}));
  EXPECT_EQ(inverse, (std::vector<i32>{0, -1, 3, 4, 1, 2, -1, -1}));
}

TEST_P(PaddedOrderTest, InvertsItself) {
  std::mt19937 random(11);
  constexpr i64 kExperts = 6;
  for (const i64 ranks : {1, 3, 8}) {
    for (const i64 per_rank : {1, 40, 700}) {
      std::vector<i32> counts;
      for (i64 i = 0; i < ranks * kExperts; ++i) counts.push_back(static_cast<i32>(random() % u64(per_rank + 1)));
      const ExpertRange range{2, 3};
      const ops::PaddedRows rows{.per_rank = per_rank, .per_expert = ranks * per_rank};
      const auto [order_of_rows, inverse] = order(table(counts, kExperts), range, rows);
      for (i64 e = 0; e < range.count; ++e) {
        std::vector<i32> expected;
        for (i64 rank = 0; rank < ranks; ++rank)
          for (i32 i = 0; i < counts[static_cast<std::size_t>(rank * kExperts + range.first + e)]; ++i)
            expected.push_back(static_cast<i32>((rank * range.count + e) * per_rank) + i);
        expected.resize(static_cast<std::size_t>(rows.per_expert), -1);
        const auto begin = order_of_rows.begin() + e * rows.per_expert;
        EXPECT_EQ(std::vector<i32>(begin, begin + rows.per_expert), expected);
      }
      for (std::size_t row = 0; row < order_of_rows.size(); ++row) {
        if (order_of_rows[row] >= 0) {
          EXPECT_EQ(inverse[static_cast<std::size_t>(order_of_rows[row])], static_cast<i32>(row));
        }
      }
      EXPECT_EQ(std::ranges::count(inverse, -1), std::ranges::count(order_of_rows, -1));
    }
  }
}

TEST_P(ExpertChoicesTest, AreTalliedBySampleAndDropped) {
  constexpr i64 kTokens = 3001, kTopk = 3, kExperts = 7;
  std::mt19937 random(2);
  std::vector<i32> all;
  for (i64 i = 0; i < kTokens * kTopk; ++i) all.push_back(static_cast<i32>(random() % u64(kExperts + 2)) - 1);
  const Tensor chosen = table(all, kTopk);
  for (const i64 batch : {1, 4}) {
    Numbers expected(static_cast<std::size_t>(batch * kExperts), 10);
    double expected_dropped = 5;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const i64 sample = static_cast<i64>(i) / kTopk % batch;
      if (all[i] >= 0 && all[i] < kExperts) ++expected[static_cast<std::size_t>(sample * kExperts + all[i])];
      if (all[i] < 0) ++expected_dropped;
    }
    Tensor counts = tensor_of(Numbers(expected.size(), 10), {batch, kExperts}, DType::F64, *device_, 0), none;
    Tensor dropped = tensor_of({5}, {1}, DType::F64, *device_, 0);
    ops::tally_choices(chosen, counts, none);
    ops::tally_choices(chosen, none, dropped);
    EXPECT_EQ(to_doubles(counts), expected);
    EXPECT_EQ(to_doubles(dropped), (Numbers{expected_dropped}));
    EXPECT_NE(error_of([&] { ops::tally_choices(chosen, counts, dropped); }).empty(), batch > 1);
  }
}

TEST_P(ExpertChoicesTest, CountsAreDividedByTheirMean) {
  for (const i64 n : {1, 5, 1000}) {
    Numbers values(static_cast<std::size_t>(n));
    std::iota(values.begin(), values.end(), 1);
    Tensor counts = tensor_of(values, {1, n}, DType::F64, *device_, 0);
    ops::divide_by_mean(counts);
    const double factor = static_cast<double>(n) / std::accumulate(values.begin(), values.end(), 0.0);
    for (double& value : values) value *= factor;
    EXPECT_EQ(to_doubles(counts), values);
    Tensor zeros = Tensor::zeros({1, n}, DType::F64, *device_);
    ops::divide_by_mean(zeros);
    EXPECT_EQ(to_doubles(zeros), Numbers(values.size(), 0));
  }
}

TEST_P(ExpertChoicesTest, DotProductsAreAdded) {
  for (const i64 n : {1, 300, 5000}) {
    const Numbers x = normals(n, 1), y = normals(n, 2);
    Tensor sum = tensor_of({3}, {1}, DType::F64, *device_, 0);
    ops::add_dot(tensor_of(x, {n}, DType::F64, *device_, 0), tensor_of(y, {n}, DType::F64, *device_, 0), sum);
    EXPECT_NEAR(to_doubles(sum)[0], std::inner_product(x.begin(), x.end(), y.begin(), 3.0), 1e-11);
  }
}

TEST_P(ExpertChoicesTest, TablesAreFilledWithProgressions) {
  Tensor numbers = Tensor::empty({3, 2}, DType::I32, *device_);
  ops::fill_progression(numbers, {.first = -1, .row_step = 2, .column_step = 10});
  EXPECT_EQ(read_values<i32>(numbers), (std::vector<i32>{-1, 9, 1, 11, 3, 13}));
  Tensor column = Tensor::empty({3000, 1}, DType::I32, *device_);
  ops::fill_progression(column, {.first = 5, .row_step = 1});
  std::vector<i32> expected(3000);
  std::iota(expected.begin(), expected.end(), 5);
  EXPECT_EQ(read_values<i32>(column), expected);
  EXPECT_NE(error_of([&] { ops::fill_progression(column, {.first = 0, .row_step = i64{1} << 30}); }), "");
}

}  // namespace
}  // namespace mcpp::test
