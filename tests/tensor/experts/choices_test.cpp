#include "tensor/ops/choices.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/support/errors.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp::test {
namespace {

class Choices : public testing::TestWithParam<DeviceType> {
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
  /// Tokens and slots.
  std::pair<std::vector<i32>, std::vector<i32>> sorted(const Tensor& experts, const ExpertRange& range) {
    const std::vector<i32> counts = counts_of(experts, range);
    const i64 rows = std::accumulate(counts.begin(), counts.end(), i64{0});
    Tensor tokens = Tensor::empty({rows}, DType::I32, *device_), slots = Tensor::like(experts);
    ops::sort_choices(experts, range, tokens, slots);
    return {read_values<i32>(tokens), read_values<i32>(slots)};
  }

  std::unique_ptr<Device> device_;
};

INSTANTIATE_TEST_SUITE_P(Devices, Choices, testing::ValuesIn(device_types()),
                         [](const auto& p) { return name_of(p.param); });

TEST_P(Choices, AreSortedByExpertAndThenByToken) {
  const Tensor experts = table({2, 0, 1, 2, 0, -1}, 2);  // three tokens, two choices each
  EXPECT_EQ(counts_of(experts, {0, 3}), (std::vector<i32>{2, 1, 2}));
  const auto [tokens, slots] = sorted(experts, {0, 3});
  EXPECT_EQ(tokens, (std::vector<i32>{0, 2, 1, 0, 1}));
  EXPECT_EQ(slots, (std::vector<i32>{3, 0, 2, 4, 1, -1}));
}

TEST_P(Choices, OfOtherExpertsAreNone) {
  const Tensor experts = table({2, 0, 1, 3, 0, 1}, 2);
  EXPECT_EQ(counts_of(experts, {1, 2}), (std::vector<i32>{2, 1}));
  const auto [tokens, slots] = sorted(experts, {1, 2});
  EXPECT_EQ(tokens, (std::vector<i32>{1, 2, 0}));
  EXPECT_EQ(slots, (std::vector<i32>{2, -1, 0, -1, -1, 1}));
}

/// As a stable sort of them has them, whatever the sizes: pieces of a warp and of several, one expert and many.
TEST_P(Choices, AreInTheOrderOfAStableSort) {
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
        std::vector<i32> places(all.size(), -1);
        for (std::size_t row = 0; row < order.size(); ++row)
          places[static_cast<std::size_t>(order[row])] = static_cast<i32>(row);
        const auto [tokens, slots] = sorted(table(all, 1), {0, experts});
        EXPECT_TRUE(tokens == order);
        EXPECT_TRUE(slots == places);
      }
    }
  }
}

TEST_P(Choices, MayBeNone) {
  const Tensor none = Tensor::empty({0, 2}, DType::I32, *device_);
  EXPECT_EQ(counts_of(none, {0, 3}), (std::vector<i32>{0, 0, 0}));
  EXPECT_TRUE(sorted(none, {0, 3}).first.empty());
  const auto [tokens, slots] = sorted(table({-1, -1, 5, 5}, 2), {0, 3});
  EXPECT_TRUE(tokens.empty());
  EXPECT_EQ(slots, (std::vector<i32>{-1, -1, -1, -1}));
}

TEST_P(Choices, RunsBecomeAnOrderAndItsInverse) {
  const Tensor runs = integers_of({0, 0, 2, 5, 2, 1, 2, 3, 3, 6, 6, 0}, *device_).view({4, 3});
  Tensor order = Tensor::empty({6}, DType::I32, *device_), inverse = Tensor::like(order);
  ops::order_of_runs(runs, order, inverse);
  EXPECT_EQ(read_values<i32>(order), (std::vector<i32>{0, 1, 5, 2, 3, 4}));
  EXPECT_EQ(read_values<i32>(inverse), (std::vector<i32>{0, 1, 3, 4, 5, 2}));
}

TEST_P(Choices, ArgumentsAreChecked) {
  const Tensor experts = table({2, 0, 1, 3}, 2);
  EXPECT_NE(error_of([&] { counts_of(experts, {0, 0}); }), "");
  EXPECT_NE(error_of([&] { counts_of(experts, {-1, 2}); }), "");
  Tensor counts = Tensor::empty({3}, DType::I32, *device_), floats = Tensor::empty({4}, DType::F32, *device_),
         slots = Tensor::like(experts), tokens = Tensor::empty({4}, DType::I32, *device_);
  EXPECT_NE(error_of([&] { ops::count_choices(experts, {0, 4}, counts); }), "");
  EXPECT_NE(error_of([&] { ops::count_choices(floats, {0, 3}, counts); }), "");
  EXPECT_NE(error_of([&] { ops::sort_choices(experts, {0, 4}, floats, slots); }), "");
  EXPECT_NE(error_of([&] { ops::sort_choices(experts, {0, 4}, tokens, counts); }), "");
  EXPECT_NE(error_of([&] { ops::order_of_runs(slots, tokens, tokens); }), "");
}

}  // namespace
}  // namespace mcpp::test
