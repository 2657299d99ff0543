// Weights in bf16 without master weights, which updates round stochastically.
#include <gtest/gtest.h>

#include "tests/optimizer/small_model.h"
#include "tests/support/disk_folder.h"

namespace mcpp {
namespace {

using test::SmallModel;

class StochasticRoundingTest : public testing::Test {
 protected:
  static OptimizerConfig with_master(OptimizerKind kind = OptimizerKind::Adam) {
    OptimizerConfig config;
    config.optimizer = kind;
    return config;
  }
  static OptimizerConfig rounded(OptimizerConfig config = with_master()) {
    config.stochastic_rounding = true;
    return config;
  }

  const test::DiskFolder folder_;
};

/// The states may be anywhere, in segments that do not end at parameter boundaries.
TEST_F(StochasticRoundingTest, IsBitwiseIdenticalOnAnyTier) {
  for (const OptimizerKind kind : {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon}) {
    SmallModel resident(DType::BF16, rounded(with_master(kind)));
    for (int i = 0; i < 10; ++i) resident.step();
    for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
      for (const double fraction : {1.0, 0.4}) {
        SCOPED_TRACE(str(enum_name(kind), " ", enum_name(tier), " ", fraction));
        OptimizerConfig config = rounded(with_master(kind));
        config.offload = tier;
        config.offload_fraction = fraction;
        config.offload_segment_size = 700;
        if (tier == OffloadTier::File) config.offload_folder = folder_.path().string();
        SmallModel offloaded_model(DType::BF16, config);
        for (int i = 0; i < 10; ++i) offloaded_model.step();
        EXPECT_TRUE(offloaded_model.state_bytes() == resident.state_bytes());
      }
    }
  }
}

/// SGD is linear in the weights, so their expected values are those of training with master weights, even though single
/// updates are far below the distance between neighboring bf16 values.
TEST_F(StochasticRoundingTest, KeepsSmallUpdatesOnAverage) {
  SmallModel exact(DType::F32, with_master(OptimizerKind::Sgd));
  SmallModel model(DType::BF16, rounded(with_master(OptimizerKind::Sgd)));
  const std::vector<double> start = model.weights();
  exact.copy_weights(model);
  constexpr double kGradient = 1e-3;
  for (int i = 0; i < 200; ++i) exact.step(kGradient), model.step(kGradient);
  const std::vector<double> expected = exact.weights(), weights = model.weights();
  double sum = 0, squares = 0, moved = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (start[i] == 0) continue;
    const double difference = (weights[i] - expected[i]) * (start[i] > 0 ? 1 : -1);  // weight decay moves to zero
    sum += difference, squares += difference * difference;
    moved += (expected[i] - start[i]) * (start[i] > 0 ? 1 : -1);
    ++count;
  }
  const double mean = sum / static_cast<double>(count), error = std::sqrt(squares) / static_cast<double>(count);
  EXPECT_NEAR(mean, 0, 4 * error);
  EXPECT_LT(moved / static_cast<double>(count), -20 * error) << "weights that stay would fail";
}

TEST_F(StochasticRoundingTest, StoresNoMasterWeights) {
  const auto bytes = [](const OptimizerConfig& config) {
    SmallModel model(DType::BF16, config);
    model.step();
    return static_cast<double>(
        model.device().memory().by_class[static_cast<std::size_t>(MemoryClass::OptimizerState)].peak);
  };
  OptimizerConfig small = with_master(OptimizerKind::Sgd);
  EXPECT_NEAR(bytes(rounded(small)) / bytes(small), 0.5, 0.04);
  const SmallModel model(DType::BF16, rounded());
  EXPECT_FALSE(model.optimizer().stores_master());
  for (const auto& [name, values] : model.states()) EXPECT_FALSE(name.starts_with(kMasterState)) << name;
}

TEST_F(StochasticRoundingTest, SkippedUpdatesChangeNothing) {
  SmallModel model(DType::BF16, rounded());
  for (int i = 0; i < 3; ++i) model.step();
  const auto before = model.state_bytes();
  EXPECT_TRUE(model.step(std::nan("")).is_skipped);
  EXPECT_TRUE(model.state_bytes() == before);
}

/// Another seed and another update have other random numbers.
TEST_F(StochasticRoundingTest, DependsOnSeedAndUpdate) {
  const auto trained = [](u64 seed, i64 first_update) {
    SmallModel model(DType::BF16, rounded(with_master(OptimizerKind::Sgd)));
    model.optimizer().set_rounding_seed(seed);
    model.optimizer().set_steps(first_update);
    model.step(1e-3);
    return model.weights();
  };
  EXPECT_EQ(trained(1, 0), trained(1, 0));
  EXPECT_NE(trained(1, 0), trained(2, 0));
  EXPECT_NE(trained(1, 0), trained(1, 1));
}

TEST_F(StochasticRoundingTest, RejectsOtherTypesAndStorage) {
  for (const DType dtype : {DType::F32, DType::F16, DType::F64})
    EXPECT_THROW(SmallModel(dtype, rounded()), Error) << name_of(dtype);
  OptimizerConfig config = rounded();
  config.store_param_remainders = true;
  ASSERT_EQ(config.conflicts().size(), 1u);
  EXPECT_NE(config.conflicts()[0].find("optimizer.store_param_remainders: stochastic_rounding"), std::string::npos);
  config = rounded();
  config.ema_decay = 0.9;
  ASSERT_EQ(config.conflicts().size(), 1u);
  EXPECT_NE(config.conflicts()[0].find("optimizer.ema_decay: the average"), std::string::npos);
}

}  // namespace
}  // namespace mcpp
