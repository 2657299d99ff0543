#include <gtest/gtest.h>

#include <random>

#include "base/check.h"
#include "parallel/dp/buckets/plan.h"

namespace mcpp {
namespace {

std::vector<ParamMeta> three_units() {
  return {{"embedding", 1000, 0}, {"w0", 100, 1}, {"b0", 10, 1}, {"w1", 100, 2}, {"b1", 10, 2}, {"norm", 5, 2}};
}

TEST(BufferPlanTest, PlacesParametersAtAlignedOffsets) {
  const BufferPlan plan = plan_buffer(three_units(), 2, 0);
  EXPECT_EQ(plan.offsets, (std::vector<i64>{0, 1024, 1152, 1216, 1344, 1408}));
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.total, 1536);  // 1472 in parameters, padded to a multiple of 2 * 64
}

TEST(BufferPlanTest, FillsBucketsFromLastUnit) {
  const BufferPlan plan = plan_buffer(three_units(), 1, 300);
  ASSERT_EQ(plan.buckets.size(), 2u);
  // Unit 2 alone has 256 elements, so unit 1 joins it. The embedding remains.
  EXPECT_EQ(plan.buckets[0].first_unit, 0);
  EXPECT_EQ(plan.buckets[0].end_unit, 1);
  EXPECT_EQ(plan.buckets[1].first_unit, 1);
  EXPECT_EQ(plan.buckets[1].end_unit, 3);
  EXPECT_EQ(plan.buckets[1].first_param, 1u);
  EXPECT_EQ(plan.buckets[1].end_param, 6u);
  EXPECT_EQ(plan.bucket_of(0), 0u);
  EXPECT_EQ(plan.bucket_of(2), 1u);
}

TEST(BufferPlanTest, HasNoBucketForUnitWithoutParameters) {
  const BufferPlan plan = plan_buffer(std::vector<ParamMeta>{{"w1", 100, 1}, {"w3", 100, 3}}, 1, 1);
  ASSERT_EQ(plan.buckets.size(), 2u);
  const std::vector<std::optional<std::size_t>> expected{{}, 0, {}, 1, {}};
  for (int unit = 0; unit < 5; ++unit) EXPECT_EQ(plan.bucket_of(unit), expected[static_cast<std::size_t>(unit)]);
}

TEST(BufferPlanTest, IsEmptyWithoutParameters) {
  const BufferPlan plan = plan_buffer({}, 4, 100);
  EXPECT_EQ(plan.total, 0);
  EXPECT_TRUE(plan.buckets.empty());
  EXPECT_FALSE(plan.bucket_of(0));
}

TEST(BufferPlanTest, RejectsDecreasingUnits) {
  const std::vector<ParamMeta> params{{"a", 1, 1}, {"b", 1, 0}};
  EXPECT_THROW(plan_buffer(params, 1, 0), Error);
}

std::vector<ParamMeta> random_params(std::mt19937& random) {
  const auto below = [&](u32 n) { return static_cast<int>(random() % n); };
  std::vector<ParamMeta> params(static_cast<std::size_t>(below(40)));
  int unit = 0;
  for (ParamMeta& p : params) {
    p = {"p", below(3) == 0 ? below(70) : below(5000), unit};
    if (below(3) == 0) unit += 1 + below(2);
  }
  return params;
}

void expect_sound_layout(const BufferPlan& plan) {
  i64 end = 0;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    EXPECT_GE(plan.offsets[i], end) << "parameters overlap";
    EXPECT_EQ(plan.offsets[i] % kParamAlignment, 0);
    end = plan.offsets[i] + plan.params[i].numel;
  }
  EXPECT_LE(end, plan.total);
}

void expect_sound_buckets(const BufferPlan& plan, i64 bucket_elements) {
  i64 end = 0;
  std::size_t next_param = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    EXPECT_EQ(bucket.begin, end) << "buckets leave a gap";
    EXPECT_EQ(bucket.size() % (plan.dp * kParamAlignment), 0);
    EXPECT_EQ(bucket.first_param, next_param);
    for (std::size_t i = bucket.first_param; i < bucket.end_param; ++i) {
      EXPECT_GE(plan.offsets[i], bucket.begin);
      EXPECT_LE(plan.offsets[i] + plan.params[i].numel, bucket.end);
      EXPECT_GE(plan.params[i].unit, bucket.first_unit);
      EXPECT_LT(plan.params[i].unit, bucket.end_unit);
      EXPECT_EQ(plan.bucket_of(plan.params[i].unit), b);
    }
    if (b > 0) {
      EXPECT_LE(plan.buckets[b - 1].end_unit, bucket.first_unit) << "a unit is split";
      EXPECT_GE(bucket.size(), bucket_elements) << "only the first bucket may be small";
    }
    end = bucket.end;
    next_param = bucket.end_param;
  }
  EXPECT_EQ(end, plan.total);
  EXPECT_EQ(next_param, plan.params.size());
}

/// Checks that the parts of each parameter in the chunks of the vector add up to the full parameter.
void expect_chunks_cover(const BufferPlan& plan, i64 chunk) {
  std::vector<i64> elements(plan.params.size(), 0);
  for (i64 begin = 0; begin < plan.total; begin += chunk) {
    const i64 end = std::min(begin + chunk, plan.total);
    for (std::size_t i = 0; i < plan.params.size(); ++i) {
      const ParamPart part = part_inside(plan, i, begin, end);
      if (part.count <= 0) continue;
      EXPECT_EQ(part.first, elements[i]);
      elements[i] += part.count;
    }
  }
  for (std::size_t i = 0; i < plan.params.size(); ++i) EXPECT_EQ(elements[i], plan.params[i].numel);
}

TEST(BufferPlanTest, HoldsInvariantsForRandomParameters) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const std::vector<ParamMeta> params = random_params(random);
    const int dp = 1 + static_cast<int>(random() % 9);
    const i64 bucket_elements = static_cast<i64>(random() % 20000);
    const BufferPlan plan = plan_buffer(params, dp, bucket_elements);
    expect_sound_layout(plan);
    expect_sound_buckets(plan, bucket_elements);
    expect_chunks_cover(plan, 64 * (1 + static_cast<i64>(random() % 50)));
  }
}

TEST(BucketCloseThresholdTest, IsLowerForCompressedGradients) {
  constexpr i64 kWanted = 40'000'000;
  EXPECT_EQ(bucket_close_threshold(0, kWanted, false), kWanted);
  EXPECT_EQ(bucket_close_threshold(1, 0, false), 0);
  EXPECT_EQ(bucket_close_threshold(1, kWanted, true), kPackedBucket);
  EXPECT_EQ(bucket_close_threshold(1, 0, true), kPackedBucket);
  EXPECT_EQ(bucket_close_threshold(1, 1000, true), 1000);
  for (const bool is_packed : {false, true}) EXPECT_EQ(bucket_close_threshold(2, kWanted, is_packed), 1);
}

}  // namespace
}  // namespace mcpp
