// Averaged weights: like PyTorch's AveragedModel, unchanged by skipped steps, without effect on training, and exchanged
// with the weights bitwise, wherever states are stored.
#include "optimizer/weight_average.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/optimizer/small_model.h"
#include "tests/support/build.h"
#include "tests/support/disk_folder.h"

namespace mcpp {
namespace {

using test::SmallModel;
using States = std::map<std::string, std::vector<float>>;

struct GoldenRow {
  i64 step, index;
  double gradient, weight, ema;
};

std::vector<GoldenRow> golden_rows() {
  std::vector<GoldenRow> rows;
  const std::vector<std::string> lines =
      split(read_text_file(test::source_folder() / "tests/golden/ema_weights.csv"), '\n');
  for (std::size_t i = 1; i < lines.size() && !lines[i].empty(); ++i) {
    const std::vector<std::string> cells = split(lines[i], ',');
    rows.push_back(
        {std::stoll(cells[0]), std::stoll(cells[1]), std::stod(cells[2]), std::stod(cells[3]), std::stod(cells[4])});
  }
  return rows;
}

TEST(WeightAverageTest, MatchesAveragedModelOfPyTorch) {
  constexpr i64 kElements = 24;
  OptimizerConfig config;
  config.clip_grad = 0;
  config.ema_decay = 0.9;
  CpuDevice device;
  const auto self = make_self_communicator();
  Param param("linear.weight", {6, 4}, Init::Normal);
  const std::vector<UnitParam> list{{&param, 0}};
  const auto buffer = make_param_and_grad_buffer(list, DType::F32, device, {*self, *self}, {.bucket_size = 0});
  const std::vector<GoldenRow> rows = golden_rows();
  ASSERT_EQ(rows.size() % kElements, 0u);
  ASSERT_GT(rows.size() / kElements, 10u);
  for (i64 i = 0; i < kElements; ++i)
    param.value.data<float>()[i] = static_cast<float>(rows[static_cast<std::size_t>(i)].weight);
  ParamAndGradBuffer* const buffers[]{buffer.get()};
  Optimizer optimizer(buffers, config);
  for (std::size_t first = kElements; first < rows.size(); first += kElements) {
    buffer->clear_grads();
    param.add_grad([&](Tensor& sum, float) {
      for (std::size_t i = 0; i < kElements; ++i) sum.data<float>()[i] = static_cast<float>(rows[first + i].gradient);
    });
    buffer->finish();
    optimizer.step(1e-2, 0.1);
    optimizer.visit_stored_state([&](std::string_view state, const Param&, i64, const StoredArray& values) {
      if (state != kEmaState) return;
      ASSERT_EQ(values.numel(), kElements);
      for (std::size_t i = 0; i < kElements; ++i) {
        EXPECT_NEAR(param.value.data<float>()[i], rows[first + i].weight, 1e-6) << "step " << rows[first].step;
        EXPECT_NEAR(values.tensor().data<float>()[i], rows[first + i].ema, 1e-6) << "step " << rows[first].step;
      }
    });
  }
}

OptimizerConfig config_of(OptimizerKind kind, double decay, i64 start = 0, i64 interval = 1) {
  OptimizerConfig config;
  config.optimizer = kind;
  config.ema_decay = decay;
  config.ema_start = start;
  config.ema_interval = interval;
  return config;
}

/// Returns the states whose names begin with `state`, by parameter.
States states_of(const SmallModel& model, std::string_view state) {
  States found;
  for (const auto& [name, values] : model.states()) {
    if (name.starts_with(str(state, " "))) found[name.substr(state.size() + 1)] = values;
  }
  return found;
}

/// Master weights, which are the weights themselves in an fp32 model.
States master_weights(SmallModel& model, DType dtype) {
  if (dtype == DType::BF16) return states_of(model, kMasterState);
  model.optimizer().swap_ema();
  States weights = states_of(model, kEmaState);
  model.optimizer().swap_ema();
  return weights;
}

TEST(WeightAverageTest, FollowsItsFormulaFromStartAtInterval) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    for (const OptimizerKind kind : {OptimizerKind::Adam, OptimizerKind::Sgd, OptimizerKind::Muon}) {
      SCOPED_TRACE(str(name_of(dtype), " ", enum_name(kind)));
      SmallModel model(dtype, config_of(kind, 0.75, /*start=*/2, /*interval=*/3));
      std::map<std::string, std::vector<double>> expected;
      for (i64 step = 1; step <= 12; ++step) {
        model.step();
        const States weights = master_weights(model, dtype), average = states_of(model, kEmaState);
        ASSERT_EQ(average.size(), 5u);
        for (const auto& [name, values] : average) {
          std::vector<double>& reference = expected[name];
          const std::vector<float>& now = weights.at(name);
          reference.resize(now.size());
          for (std::size_t i = 0; i < now.size(); ++i) {
            if (step <= 2) reference[i] = now[i];
            if (step == 5 || step == 8 || step == 11) reference[i] = 0.75 * reference[i] + 0.25 * now[i];
            ASSERT_NEAR(values[i], reference[i], 1e-6) << name << " after step " << step;
            ASSERT_TRUE(step > 2 || values[i] == now[i]);
          }
        }
      }
      EXPECT_NE(states_of(model, kEmaState), master_weights(model, dtype));
    }
  }
}

TEST(WeightAverageTest, SkippedStepChangesNothing) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    SmallModel model(dtype, config_of(OptimizerKind::Adam, 0.5));
    for (int i = 0; i < 3; ++i) model.step();
    const auto before = model.state_bytes();
    EXPECT_TRUE(model.step(std::numeric_limits<double>::quiet_NaN()).is_skipped);
    EXPECT_TRUE(model.state_bytes() == before);
    EXPECT_EQ(model.optimizer().steps(), 3);
  }
}

/// Forms of storing states in all places.
std::vector<OptimizerConfig> storage_forms(DType dtype, const OptimizerConfig& base, const Path& folder) {
  std::vector<OptimizerConfig> list;
  for (const OffloadTier tier : {OffloadTier::Device, OffloadTier::Host, OffloadTier::File}) {
    for (const bool has_remainders : {false, true}) {
      if (has_remainders && dtype != DType::BF16) continue;
      OptimizerConfig config = base;
      config.offload = tier;
      config.store_param_remainders = has_remainders;
      if (tier != OffloadTier::Device) config.offload_segment_size = 700;
      if (tier == OffloadTier::File) config.offload_folder = folder.string();
      list.push_back(config);
    }
  }
  return list;
}

TEST(WeightAverageTest, IsBitwiseIdenticalInEveryStorageAndLeavesTrainingUnchanged) {
  const test::DiskFolder folder;
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    SmallModel without(dtype, config_of(OptimizerKind::Adam, 0));
    for (int i = 0; i < 6; ++i) without.step();
    std::optional<States> average;
    for (const OptimizerConfig& config : storage_forms(dtype, config_of(OptimizerKind::Adam, 0.9), folder.path())) {
      SCOPED_TRACE(str(name_of(dtype), " ", enum_name(config.offload), " ", config.store_param_remainders));
      SmallModel model(dtype, config);
      for (int i = 0; i < 6; ++i) model.step();
      auto bytes = model.state_bytes();
      if (!average) average = states_of(model, kEmaState);
      EXPECT_EQ(states_of(model, kEmaState), *average);
      std::erase_if(bytes, [](const auto& entry) { return entry.first.starts_with("ema "); });
      EXPECT_TRUE(bytes == without.state_bytes());
    }
  }
}

TEST(WeightAverageTest, SwapUsesAverageAndSecondSwapRestoresBitwise) {
  const test::DiskFolder folder;
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    for (const OptimizerConfig& config : storage_forms(dtype, config_of(OptimizerKind::Adam, 0.9), folder.path())) {
      SCOPED_TRACE(str(name_of(dtype), " ", enum_name(config.offload), " ", config.store_param_remainders));
      SmallModel model(dtype, config), straight(dtype, config);
      for (int i = 0; i < 4; ++i) model.step(), straight.step();
      const auto before = model.state_bytes();
      const States average = states_of(model, kEmaState);
      model.optimizer().swap_ema();
      EXPECT_FALSE(model.state_bytes() == before);
      std::vector<double> expected;
      for (const char* name : {"embedding.weight", "norm.weight", "linear.weight", "linear.bias", "out.weight"}) {
        for (const float value : average.at(name))
          expected.push_back(on_float(dtype, [&]<class T>() { return to_double(from_double<T>(value)); }));
      }
      std::vector<double> weights = model.weights();
      std::ranges::sort(weights), std::ranges::sort(expected);
      EXPECT_EQ(weights, expected);
      model.optimizer().swap_ema();
      EXPECT_TRUE(model.state_bytes() == before);
      model.step(), straight.step();
      EXPECT_TRUE(model.state_bytes() == straight.state_bytes());
    }
  }
}

TEST(WeightAverageTest, StartsFromLoadedWeights) {
  SmallModel model(DType::BF16, config_of(OptimizerKind::Adam, 0.9));
  for (int i = 0; i < 4; ++i) model.step();
  EXPECT_NE(states_of(model, kEmaState), states_of(model, kMasterState));
  model.optimizer().start_ema();
  EXPECT_EQ(states_of(model, kEmaState), states_of(model, kMasterState));
}

TEST(WeightAverageConfigTest, ReportsKeysWithoutEffect) {
  EXPECT_EQ(config_of(OptimizerKind::Adam, 0, 5).conflicts(),
            std::vector<std::string>{"optimizer.ema_start, ema_interval: only read with ema_decay"});
  EXPECT_EQ(config_of(OptimizerKind::Adam, 0, 0, 2).conflicts().size(), 1u);
  EXPECT_TRUE(config_of(OptimizerKind::Adam, 0.9, 5, 2).conflicts().empty());
}

}  // namespace
}  // namespace mcpp
