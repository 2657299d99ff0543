// Histories of delayed scaling, compared with their definition.
#include "parallel/tp/amax_history.h"

#include <gtest/gtest.h>

#include <limits>

#include "comm/local.h"
#include "tests/support/tensors.h"

namespace mcpp::amax_history_test {
namespace {

using test::Numbers;

/// Histories of one layer, with steps on one rank.
class OneLayer {
 public:
  explicit OneLayer(const DelayedScaling& settings) : histories_(settings), layer_(histories_.add("layer")) {
    histories_.allocate(device_);
  }

  /// Runs a step with these magnitudes of inputs, one per microbatch.
  void step(const Numbers& inputs) {
    histories_.begin_step();
    for (const double input : inputs)
      layer_.record(ScaledTensor::Input, test::tensor_of({-input, 0}, {2}, DType::BF16, device_));
    Communicator* const ranks[]{self_.get()};
    histories_.end_step(ranks);
    histories_.update_scales();
  }
  /// Runs a step with a weight of two parts, and an additional record of other values.
  void step_with_weight(double first, double second, double other) {
    const auto part = [&](double value) { return test::tensor_of({value}, {1}, DType::BF16, device_); };
    histories_.begin_step();
    layer_.record_weight({part(first), part(second)});
    layer_.record_weight({part(other)});
    Communicator* const ranks[]{self_.get()};
    histories_.end_step(ranks);
    histories_.update_scales();
  }
  /// Returns the magnitude that the scale of a tensor is derived from; -1: none.
  double scaling(ScaledTensor tensor = ScaledTensor::Input) const {
    return layer_.has_scale(tensor) ? test::to_doubles(layer_.scaling_amax(tensor))[0] : -1;
  }

 private:
  CpuDevice device_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  AmaxHistories histories_;
  AmaxHistory& layer_;
};

TEST(AmaxHistoryTest, ScaleFollowsFromMaximumOfKeptSteps) {
  OneLayer one({.amax_history_len = 3});
  EXPECT_EQ(one.scaling(), -1);
  one.step({2, 8, 4});
  EXPECT_EQ(one.scaling(), 8) << "the maximum of the microbatches";
  one.step({1});
  one.step({3});
  EXPECT_EQ(one.scaling(), 8);
  one.step({2});
  EXPECT_EQ(one.scaling(), 3) << "the first step is no longer kept";
}

TEST(AmaxHistoryTest, ScaleFollowsFromMostRecentStep) {
  OneLayer one({.amax_history_len = 3, .amax_compute_algo = AmaxComputeAlgo::MostRecent});
  one.step({8});
  one.step({1});
  EXPECT_EQ(one.scaling(), 1);
  one.step({0});
  EXPECT_EQ(one.scaling(), -1) << "a zero tensor has no scale";
}

TEST(AmaxHistoryTest, MarginMultipliesMagnitude) {
  OneLayer one({.amax_history_len = 1, .margin = 3});
  one.step({5});
  EXPECT_EQ(one.scaling(), 40);
  one.step({3e38});
  EXPECT_EQ(one.scaling(), std::numeric_limits<float>::max()) << "and stays finite";
}

TEST(AmaxHistoryTest, IgnoresNonFiniteSteps) {
  OneLayer one({.amax_history_len = 2});
  one.step({2});
  one.step({std::numeric_limits<double>::infinity()});
  EXPECT_EQ(one.scaling(), 2);
}

TEST(AmaxHistoryTest, RecordsWeightOncePerStep) {
  OneLayer one({.amax_history_len = 1});
  one.step_with_weight(2, -3, 9);
  EXPECT_EQ(one.scaling(ScaledTensor::Weight), 3);
  EXPECT_EQ(one.scaling(), -1) << "no input was recorded";
  one.step_with_weight(4, 1, 9);
  EXPECT_EQ(one.scaling(ScaledTensor::Weight), 4);
}

TEST(AmaxHistoryTest, RanksUseTheirCommonMaximum) {
  run_local_ranks(4, [](Communicator& ranks, int rank) {
    CpuDevice device;
    AmaxHistories histories({.amax_history_len = 2});
    AmaxHistory& layer = histories.add("layer");
    histories.allocate(device);
    histories.begin_step();
    layer.record(ScaledTensor::Gradient, test::tensor_of({1.0 + rank}, {1}, DType::BF16, device));
    Communicator* const groups[]{&ranks};
    histories.end_step(groups);
    histories.update_scales();
    EXPECT_EQ(test::to_doubles(layer.scaling_amax(ScaledTensor::Gradient))[0], 4);
    EXPECT_FALSE(layer.has_scale(ScaledTensor::Input));
  });
}

/// A pipeline stage may have no layer with the recipe.
TEST(AmaxHistoriesTest, DoNothingWhenNoLayerIsAdded) {
  CpuDevice device;
  const auto self = make_self_communicator();
  AmaxHistories histories({});
  histories.allocate(device);
  histories.begin_step();
  Communicator* const ranks[]{self.get()};
  histories.end_step(ranks);
  histories.update_scales();
  histories.visit([](const std::string& module, const Tensor&) { ADD_FAILURE() << module; });
}

}  // namespace
}  // namespace mcpp::amax_history_test
