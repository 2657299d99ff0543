// Master weights stored as the remainders of the bf16 model weights: training is bitwise identical to training with
// fp32 copies.
#include <gtest/gtest.h>

#include "tests/optimizer/small_model.h"
#include "tests/support/disk_folder.h"

namespace mcpp {
namespace {

using test::SmallModel;

constexpr std::array kTiers{OffloadTier::Device, OffloadTier::Host, OffloadTier::File};

class ParamRemaindersTest : public testing::Test {
 protected:
  static OptimizerConfig copied(OptimizerKind kind = OptimizerKind::Adam, StateDType moments = StateDType::Fp32) {
    OptimizerConfig config;
    config.optimizer = kind;
    config.exp_avg_dtype = moments;
    if (kind != OptimizerKind::Sgd) config.exp_avg_sq_dtype = moments;
    return config;
  }
  static OptimizerConfig joined(OptimizerConfig config = copied()) {
    config.store_param_remainders = true;
    return config;
  }
  /// Returns options with segments that do not end at parameter boundaries.
  OptimizerConfig kept_in(OffloadTier tier, OptimizerConfig config, double fraction = 1) const {
    config.offload = tier;
    config.offload_fraction = fraction;
    config.offload_segment_size = 700;
    if (tier == OffloadTier::File) config.offload_folder = folder_.path().string();
    return config;
  }

  const test::DiskFolder folder_;
};

/// Covers every optimizer, every format of the moments, and every offload tier.
TEST_F(ParamRemaindersTest, TrainingIsBitwiseIdentical) {
  for (const OptimizerKind kind : {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon}) {
    for (const StateDType moments : {StateDType::Fp32, StateDType::Bf16, StateDType::Uint8}) {
      SmallModel resident(DType::BF16, copied(kind, moments));
      for (int i = 0; i < 20; ++i) resident.step();
      for (const OffloadTier tier : kTiers) {
        for (const double fraction : {1.0, 0.4}) {
          SCOPED_TRACE(str(enum_name(kind), " ", enum_name(moments), " ", enum_name(tier), " ", fraction));
          SmallModel offloaded_model(DType::BF16, kept_in(tier, joined(copied(kind, moments)), fraction));
          for (int i = 0; i < 20; ++i) offloaded_model.step();
          EXPECT_TRUE(offloaded_model.state_bytes() == resident.state_bytes());
        }
      }
    }
  }
}

/// Stores 2 bytes and one bit per weight instead of 4 bytes.
TEST_F(ParamRemaindersTest, UsesExpectedMemory) {
  const auto bytes = [](const OptimizerConfig& config) {
    SmallModel model(DType::BF16, config);
    model.step();
    return static_cast<double>(
        model.device().memory().by_class[static_cast<std::size_t>(MemoryClass::OptimizerState)].peak);
  };
  const OptimizerConfig small = copied(OptimizerKind::Sgd, StateDType::Uint8);
  constexpr double kMomentum = 1 + 1.0 / 16;
  EXPECT_NEAR(bytes(joined(small)) / bytes(small), (2 + 1.0 / 8 + kMomentum) / (4 + kMomentum), 0.04);
}

/// Loads states as a checkpoint does, from the other representation and from a different tier, also with skipped steps.
TEST_F(ParamRemaindersTest, ConvertsToAndFromFp32Copies) {
  for (const OffloadTier tier : kTiers) {
    for (const bool joins : {false, true}) {
      SCOPED_TRACE(str(enum_name(tier), joins ? " from a copy" : " to a copy"));
      SmallModel from(DType::BF16, joins ? copied() : joined());
      SmallModel to(DType::BF16, kept_in(tier, joins ? joined() : copied()));
      for (int i = 0; i < 3; ++i) from.step(), to.step();
      from.step();  // `to` has not taken this step
      to.draw_as(from);
      test::load_states(from, to);
      EXPECT_TRUE(to.state_bytes() == from.state_bytes());
      for (SmallModel* model : {&from, &to}) {
        model->step();
        EXPECT_TRUE(model->step(std::nan("")).is_skipped);
        model->step();
      }
      EXPECT_TRUE(to.state_bytes() == from.state_bytes());
    }
  }
}

/// Elements outside the written part must not change, even in the same block.
TEST_F(ParamRemaindersTest, ReadsAndWritesParts) {
  for (const OffloadTier tier : kTiers) {
    SmallModel model(DType::BF16, kept_in(tier, joined()));
    for (int i = 0; i < 3; ++i) model.step();
    const auto before = model.states();
    int parts = 0;
    model.optimizer().visit_stored_state(
        [&](std::string_view state, const Param& param, i64 begin, const auto& values) {
          if (state != kMasterState || param.name != "linear.weight") return;
          const auto all = before.at("master linear.weight").begin() + begin;
          const std::pair<i64, i64> wanted[]{{0, 1}, {63, 2}, {100, 77}, {values.numel() - 1, 1}};
          for (const auto& [first, count] : wanted) {
            if (first + count > values.numel()) continue;
            const auto part = values.part(first, count);
            std::vector<float> own;
            test::append(part, own);
            EXPECT_EQ(own, std::vector<float>(all + first, all + first + count));
            CpuDevice host;
            Tensor part_values = Tensor::zeros({count}, DType::F32, host, MemoryClass::Other);
            part.write(part_values);
            std::copy(own.begin(), own.end(), part_values.data<float>());
            part.write(part_values);
            ++parts;
          }
        });
    EXPECT_GE(parts, 4);
    EXPECT_EQ(model.states(), before) << enum_name(tier);
  }
}

/// Training that starts from the weights of a different model.
TEST_F(ParamRemaindersTest, AreClearedWhenWeightsAreReplaced) {
  const SmallModel other(DType::BF16, copied());
  for (const OffloadTier tier : kTiers) {
    SmallModel a(DType::BF16, copied()), b(DType::BF16, kept_in(tier, joined()));
    for (SmallModel* model : {&a, &b}) {
      for (int i = 0; i < 3; ++i) model->step();
      model->copy_weights(other);
      model->optimizer().copy_model_to_master();
    }
    EXPECT_TRUE(a.state_bytes() == b.state_bytes()) << enum_name(tier);
    a.step(), b.step();
    EXPECT_TRUE(a.state_bytes() == b.state_bytes()) << enum_name(tier);
  }
}

TEST_F(ParamRemaindersTest, AreRejectedForModelsNotInBf16) {
  for (const DType dtype : {DType::F32, DType::F16, DType::F64})
    EXPECT_THROW(SmallModel(dtype, joined()), Error) << name_of(dtype);
}

}  // namespace
}  // namespace mcpp
