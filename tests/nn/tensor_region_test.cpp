#include "nn/tensor_region.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace mcpp {
namespace {

/// Returns the global row-major indices of the region's elements in the region's order, computed from the plain
/// definition.
std::vector<i64> elements_of(const Region& region) {
  std::vector<i64> elements;
  for (i64 i = region.flat_begin; i < region.flat_end; ++i) {
    i64 rest = i, index = 0, stride = 1;
    for (std::size_t axis = region.box.shape.size(); axis-- > 0;) {
      index += (region.box.offset[axis] + rest % region.box.shape[axis]) * stride;
      rest /= region.box.shape[axis];
      stride *= region.box.global[axis];
    }
    elements.push_back(index);
  }
  return elements;
}

Region random_region(const Shape& global, std::mt19937& random) {
  const auto below = [&](i64 n) { return std::uniform_int_distribution<i64>(0, n)(random); };
  Region region{.box = {global, global, global}};
  for (std::size_t axis = 0; axis < global.size(); ++axis) {
    const i64 a = below(global[axis]), b = below(global[axis]);
    region.box.offset[axis] = std::min(a, b);
    region.box.shape[axis] = std::abs(a - b);
  }
  const i64 count = numel(region.box.shape), a = below(count), b = below(count);
  region.flat_begin = std::min(a, b), region.flat_end = std::max(a, b);
  return region;
}

TEST(RegionTest, RunsAndBoxesMatchDefinition) {
  std::mt19937 random(1);
  for (const Shape& global : {Shape{}, Shape{7}, Shape{5, 6}, Shape{3, 4, 5}, Shape{2, 3, 2, 3}, Shape{1, 4, 1}}) {
    for (int round = 0; round < 500; ++round) {
      const Region from = random_region(global, random), to = random_region(global, random);
      ASSERT_EQ(find_defect(from), "");
      const std::vector<i64> source = elements_of(from), target = elements_of(to);

      std::vector<i64> boxed;
      for (const Box& box : boxes_of(from)) {
        const std::vector<i64> part = elements_of(full_region(box));
        boxed.insert(boxed.end(), part.begin(), part.end());
      }
      ASSERT_EQ(boxed, source) << "the boxes are the region, in order";
      ASSERT_LE(boxes_of(from).size(), std::max<std::size_t>(1, 2 * global.size()));

      std::vector<i64> filled(target.size(), -1);
      for_each_run(from, to, [&](i64 from_at, i64 to_at, i64 count) {
        for (i64 i = 0; i < count; ++i) {
          ASSERT_EQ(filled.at(static_cast<std::size_t>(to_at + i)), -1) << "visited twice";
          filled.at(static_cast<std::size_t>(to_at + i)) = source.at(static_cast<std::size_t>(from_at + i));
        }
      });
      const std::set<i64> held(source.begin(), source.end());
      i64 common = 0;
      for (std::size_t i = 0; i < target.size(); ++i) {
        ASSERT_EQ(filled[i], held.contains(target[i]) ? target[i] : -1);
        common += held.contains(target[i]);
      }
      ASSERT_EQ(overlap(from, to), common);
    }
  }
}

TEST(RegionTest, FullTensorIsOneRun) {
  const Region all = full_region({{4, 5, 6}, {0, 0, 0}, {4, 5, 6}});
  int runs = 0;
  for_each_run(all, all, [&](i64, i64, i64 count) {
    ++runs;
    EXPECT_EQ(count, 120);
  });
  EXPECT_EQ(runs, 1);
}

TEST(RegionTest, ReportsDefects) {
  EXPECT_NE(find_defect({.box = {{4}, {0, 0}, {4}}, .flat_begin = 0, .flat_end = 1}), "");
  EXPECT_NE(find_defect({.box = {{4}, {2}, {3}}, .flat_begin = 0, .flat_end = 1}), "");
  EXPECT_NE(find_defect({.box = {{4}, {-1}, {3}}, .flat_begin = 0, .flat_end = 1}), "");
  EXPECT_NE(find_defect({.box = {{4}, {1}, {3}}, .flat_begin = 0, .flat_end = 4}), "");
  EXPECT_NE(find_defect({.box = {{4}, {1}, {3}}, .flat_begin = 2, .flat_end = 1}), "");
  const i64 huge = i64{1} << 62;
  EXPECT_NE(find_defect({.box = {{4}, {huge}, {huge}}, .flat_begin = 0, .flat_end = 1}), "");
  EXPECT_NE(find_defect({.box = {{huge, huge}, {0, 0}, {1, 1}}, .flat_begin = 0, .flat_end = 1}), "");
}

}  // namespace
}  // namespace mcpp
