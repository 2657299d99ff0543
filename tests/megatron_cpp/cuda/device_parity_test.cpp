// A run on a GPU matches the run on the CPU: bitwise identical initial weights and the same losses up to rounding.
#include <gtest/gtest.h>

#include <iterator>

#include "comm/staged.h"
#include "tests/support/disk_folder.h"
#include "tests/support/gpu.h"
#include "tests/support/layouts/compare_runs.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::relative_distance;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

ModelConfig llama() {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 4;  // for two stages
  return config;
}

/// Sizes that cuDNN's attention and tensor cores support: heads of 64 and full tiles.
ModelConfig cudnn_llama() {
  ModelConfig config = llama();
  config.hidden_size = 128;
  config.ffn_hidden_size = 256;
  config.num_attention_heads = 2;
  config.num_query_groups = 1;
  config.seq_length = 128;
  config.vocab_size = 256;
  return config;
}

ModelConfig with_dropout() {
  ModelConfig config = test::tiny_gpt2();
  config.num_layers = 4, config.num_attention_heads = 4;
  config.hidden_dropout = config.attention_dropout = 0.1;
  return config;
}

struct Family {
  const char* name;
  ModelConfig config;
};

std::vector<Family> families() {
  if (!test::built_with_cuda()) return {};
  return {{"gpt2_dropout", with_dropout()}, {"llama", llama()}, {"llama_even", cudnn_llama()}};
}

class DeviceParityTest : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    if (!test::why_no_gpu().empty()) GTEST_SKIP() << test::why_no_gpu();
  }
  static RunTask task(DType dtype = DType::F32) { return test::learnable_task(GetParam().config, dtype); }
  static RunResult on_cpu(const RunTask& task) { return test::run_layout(task, {}, test::make_cpu_devices); }
  /// Runs the task on the GPU. The ranks of `layout` share it.
  static RunResult on_gpu(const RunTask& task, const RunLayout& layout = {}) {
    return test::run_layout(task, layout, [](Communicator& ranks) {
      std::unique_ptr<Device> gpu = test::make_gpu();
      auto world = make_staged_communicator(ranks.split(0, ranks.rank()), *gpu);
      return test::RankDevices{std::move(gpu), std::move(world)};
    });
  }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceParityTest);
INSTANTIATE_TEST_SUITE_P(Families, DeviceParityTest, testing::ValuesIn(families()),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });

TEST_P(DeviceParityTest, InitialWeightsAreBitwiseIdentical) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask untrained = task(dtype);
    untrained.steps = 0;
    EXPECT_EQ(on_gpu(untrained).weights, on_cpu(untrained).weights);
  }
}

TEST_P(DeviceParityTest, LossesMatchCpuForTwentySteps) {
  const RunResult gpu = on_gpu(task()), cpu = on_cpu(task());
  test::expect_learned(cpu, task());
  for (std::size_t i = 0; i < cpu.losses.size(); ++i)
    EXPECT_LE(std::abs(gpu.losses[i] - cpu.losses[i]) / cpu.losses[i], 1e-4) << "step " << i;
}

/// The distance of each device from fp32 is at most the error of bf16; the directions differ.
TEST_P(DeviceParityTest, Bf16LossesStayWithinRoundingError) {
  const RunResult gpu = on_gpu(task(DType::BF16)), cpu = on_cpu(task(DType::BF16)), exact = on_cpu(task());
  EXPECT_LE(relative_distance(gpu.losses, exact.losses), 1.5 * relative_distance(cpu.losses, exact.losses));
}

/// Weights and states on a disk or in host memory are transferred while the GPU computes. The result is reproducible
/// and bitwise identical to that of weights on the GPU if the states are in the same place.
TEST_P(DeviceParityTest, OffloadedWeightsAreBitwiseIdentical) {
  const RunLayout layout{"dp2_zero3", {.dp = 2, .zero_stage = 3}};
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunResult expected = on_gpu(task(dtype), layout);
    RunTask on_host = task(dtype);
    on_host.optimizer.offload = OffloadTier::Host;
    const RunResult updated_on_host = on_gpu(on_host, layout);
    const test::DiskFolder folder;
    for (const OffloadTier tier : {OffloadTier::Host, OffloadTier::File}) {
      SCOPED_TRACE(enum_name(tier));
      RunTask weights = task(dtype);
      weights.optimizer.offload_params = tier;
      weights.optimizer.offload_folder = folder.path().string();
      const RunResult offloaded_weights = on_gpu(weights, layout);
      EXPECT_EQ(offloaded_weights.losses, expected.losses);
      EXPECT_EQ(offloaded_weights.weights, expected.weights);
      RunTask all = weights;
      all.optimizer.offload = tier;
      all.optimizer.offload_segment_size = 4096;
      EXPECT_EQ(on_gpu(all, layout).weights, updated_on_host.weights);
    }
  }
}

/// GELU fused into the GEMMs rounds less often; the results differ by at most this rounding.
TEST_P(DeviceParityTest, GeluEpilogueStaysWithinBf16Error) {
  RunTask fused = task(DType::BF16);
  if (fused.model.activation_func != ActivationFunction::Gelu) return;
  fused.gelu_epilogue = true;
  const RunResult gpu = on_gpu(fused), again = on_gpu(fused), cpu = on_cpu(task(DType::BF16)), exact = on_cpu(task());
  EXPECT_LE(relative_distance(gpu.losses, exact.losses), 1.5 * relative_distance(cpu.losses, exact.losses));
  EXPECT_EQ(gpu.weights, again.weights);
}

/// The loss scale decreases from a value at which all gradients overflow. Deferred outcomes are bitwise identical.
TEST_P(DeviceParityTest, FindsWorkingLossScale) {
  RunTask fp16 = task(DType::F16);
  fp16.optimizer.initial_loss_scale = 0x1p20;
  const RunResult gpu = on_gpu(fp16), again = on_gpu(fp16);
  EXPECT_EQ(gpu.losses, again.losses);
  EXPECT_EQ(gpu.weights, again.weights);
  if (std::ssize(gpu.losses) == fp16.steps) {
    EXPECT_LT(gpu.losses.back(), gpu.losses.front());
  }
}

/// Sizes that GEMMs in low precision support, with partial blocks of 128.
ModelConfig llama_of_multiples() {
  ModelConfig config = llama();
  config.num_layers = 2;
  config.hidden_size = 64;
  config.ffn_hidden_size = 96;
  config.num_attention_heads = 2;
  config.num_query_groups = 2;
  config.seq_length = 32;
  config.vocab_size = 64;
  return config;
}

class Fp8DeviceParityTest : public DeviceParityTest {
 protected:
  /// Returns the task with all linear layers in a recipe.
  static RunTask task_in(GemmRecipe recipe) {
    RunTask task = DeviceParityTest::task(DType::BF16);
    task.low_precision = {
        {.modules = OneOrList<std::string>("decoder.*"), .recipe = recipe, .gradients = Fp8Format::E5M2}};
    return task;
  }
  /// Expects that the distance between the GPU and the CPU's emulation is at most that of the recipe from bf16.
  static void expect_within_recipe_error(GemmRecipe recipe, const RunLayout& layout = {}) {
    const RunResult in_bf16 = on_cpu(task(DType::BF16)), cpu = on_cpu(task_in(recipe));
    const double error = relative_distance(cpu.losses, in_bf16.losses),
                 difference = relative_distance(on_gpu(task_in(recipe), layout).losses, cpu.losses);
    std::printf("%s moves losses by %.2g, the GPU with %d ranks by %.2f of that\n",
                std::string(enum_name(recipe)).c_str(), error, layout.ranks(), difference / error);
    EXPECT_GT(error, 0);
    EXPECT_LE(difference, error) << layout.ranks() << " ranks";
  }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8DeviceParityTest);
INSTANTIATE_TEST_SUITE_P(Families, Fp8DeviceParityTest,
                         testing::ValuesIn(test::built_with_cuda()
                                               ? std::vector{Family{"llama_even", cudnn_llama()},
                                                             Family{"llama_multiples", llama_of_multiples()}}
                                               : std::vector<Family>{}),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });

const RunLayout kTensorParallel{{.tp = 2, .sequence_parallel = true}};

TEST_P(Fp8DeviceParityTest, TensorwiseLossesStayWithinRecipeError) {
  expect_within_recipe_error(GemmRecipe::Tensorwise);
  expect_within_recipe_error(GemmRecipe::Tensorwise, kTensorParallel);
}

/// On one rank: parts of blocks of 128 would be on different ranks.
TEST_P(Fp8DeviceParityTest, BlockwiseLossesStayWithinRecipeError) {
  expect_within_recipe_error(GemmRecipe::Blockwise);
}

TEST_P(Fp8DeviceParityTest, Mxfp8LossesStayWithinRecipeError) {
  expect_within_recipe_error(GemmRecipe::Mxfp8);
  expect_within_recipe_error(GemmRecipe::Mxfp8, kTensorParallel);
}

TEST_P(Fp8DeviceParityTest, Nvfp4LossesStayWithinRecipeError) {
  expect_within_recipe_error(GemmRecipe::Nvfp4);
  expect_within_recipe_error(GemmRecipe::Nvfp4, kTensorParallel);
}

const RunLayout kLayouts[]{
    {"tp2", {.tp = 2}},
    {"tp2_sp", {.tp = 2, .sequence_parallel = true}},
    {"pp2", {.pp = 2}},
    {"pp2_zb_h1", {.pp = 2, .schedule = ScheduleKind::ZbH1}},
    {"dp2_zero1", {.dp = 2, .zero_stage = 1}},
    {"dp2_zero3", {.dp = 2, .zero_stage = 3}},
    {"dp4_zero1_hsdp", {.dp = 4, .zero_stage = 1, .instances = 2}},
    {"dp4_zero3_hsdp", {.dp = 4, .zero_stage = 3, .instances = 2}},
    {"tp2_sp_pp2_dp2_zero1", {.tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 1}},
};

// The tolerance is the same as for CPUs (layout_parity_test.cpp).
TEST_P(DeviceParityTest, LayoutsThatShareGpuAgree) {
  const RunResult one_rank = on_gpu(task());
  for (const RunLayout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const RunResult result = on_gpu(task(), layout);
    for (std::size_t i = 0; i < one_rank.losses.size(); ++i)
      EXPECT_LE(std::abs(result.losses[i] - one_rank.losses[i]) / one_rank.losses[i], 1e-5) << "step " << i;
  }
}

/// Activations are reloaded from the host, and saves are copied, while the GPU computes.
TEST_P(DeviceParityTest, AsyncCopiesAreBitwiseIdentical) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask saving = task(dtype);
    saving.async_save = true;
    for (RunLayout layout : {RunLayout{}, RunLayout{"pp2", {.pp = 2}}}) {
      SCOPED_TRACE(layout.name);
      const RunResult expected = on_gpu(task(dtype), layout);
      layout.activations_tier = OffloadTier::Host;
      const RunResult result = on_gpu(saving, layout);
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.weights, expected.weights);
    }
  }
}

/// Updates on the host are close to those on the GPU and reproducible.
TEST_P(DeviceParityTest, HostUpdateMatchesDeviceUpdateWithinRounding) {
  const RunResult expected = on_gpu(task());
  for (const double fraction : {1.0, 0.5}) {
    RunTask offloaded = task();
    offloaded.optimizer.offload = OffloadTier::Host;
    offloaded.optimizer.offload_fraction = fraction;
    offloaded.optimizer.offload_segment_size = 4096;
    const RunResult result = on_gpu(offloaded), again = on_gpu(offloaded);
    for (std::size_t i = 0; i < expected.losses.size(); ++i)
      EXPECT_LE(std::abs(result.losses[i] - expected.losses[i]) / expected.losses[i], 1e-5) << "step " << i;
    EXPECT_EQ(result.weights, again.weights);
  }
}

TEST_P(DeviceParityTest, IsReproducible) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunResult first = on_gpu(task(dtype)), second = on_gpu(task(dtype));
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.grad_norms, second.grad_norms);
    EXPECT_EQ(first.weights, second.weights);
  }
}

}  // namespace
}  // namespace mcpp
