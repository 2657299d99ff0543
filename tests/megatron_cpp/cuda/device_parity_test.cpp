// A run on a GPU is the run on the CPU: the same initial weights to the bit, and the same losses but for rounding.
#include <gtest/gtest.h>

#include "comm/staged.h"
#include "tests/support/disk_folder.h"
#include "tests/support/gpu.h"
#include "tests/support/layouts/layout_run.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::Numbers;
using test::RunLayout;
using test::RunResult;
using test::RunTask;

ModelConfig llama() {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 4;  // for two stages
  return config;
}

/// Sizes that cuDNN's attention and tensor cores take: heads of 64, whole tiles.
ModelConfig even() {
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
  config.num_layers = config.num_attention_heads = 4;
  config.hidden_dropout = config.attention_dropout = 0.1;
  return config;
}

struct Family {
  const char* name;
  ModelConfig config;
};

std::vector<Family> families() {
  if (!test::built_with_cuda()) return {};
  return {{"gpt2_dropout", with_dropout()}, {"llama", llama()}, {"llama_even", even()}};
}

class DeviceParity : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    if (!test::why_no_gpu().empty()) GTEST_SKIP() << test::why_no_gpu();
  }
  static RunTask task(DType dtype = DType::F32) { return test::learnable_task(GetParam().config, dtype); }
  static RunResult on_cpu(const RunTask& task) { return test::run_layout(task, {}); }
  /// On several ranks, which share the GPU.
  static RunResult on_gpu(const RunTask& task, const RunLayout& layout = {}) {
    return test::run_layout(task, layout, [](Communicator& ranks) {
      std::unique_ptr<Device> gpu = test::make_gpu();
      auto world = make_staged_communicator(ranks.split(0, ranks.rank()), *gpu);
      return test::RankPlace{std::move(gpu), std::move(world)};
    });
  }
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceParity);
INSTANTIATE_TEST_SUITE_P(Families, DeviceParity, testing::ValuesIn(families()),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });

double relative_distance(const Numbers& a, const Numbers& b) {
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference += (a[i] - b[i]) * (a[i] - b[i]), whole += b[i] * b[i];
  return std::sqrt(difference / whole);
}

TEST_P(DeviceParity, InitialWeightsAreTheSameBits) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask untrained = task(dtype);
    untrained.steps = 0;
    EXPECT_EQ(on_gpu(untrained).weights, on_cpu(untrained).weights);
  }
}

TEST_P(DeviceParity, TwentyStepsHaveTheSameLosses) {
  const RunResult gpu = on_gpu(task()), cpu = on_cpu(task());
  EXPECT_LT(cpu.losses.back(), 0.9 * cpu.losses.front()) << "the task teaches nothing";
  for (std::size_t i = 0; i < cpu.losses.size(); ++i)
    EXPECT_LE(std::abs(gpu.losses[i] - cpu.losses[i]) / cpu.losses[i], 1e-4) << "step " << i;
}

/// Each device is as far from fp32 as bf16 moves it, in a direction of its own.
TEST_P(DeviceParity, TwentyStepsInBf16StayWithinItsError) {
  const RunResult gpu = on_gpu(task(DType::BF16)), cpu = on_cpu(task(DType::BF16)), exact = on_cpu(task());
  EXPECT_LE(relative_distance(gpu.losses, exact.losses), 1.5 * relative_distance(cpu.losses, exact.losses));
}

/// Weights and states on a disk, or in host memory, come and go beside the computing: the same every time, and the bits
/// of weights that stay on the GPU where the states do.
TEST_P(DeviceParity, WeightsAwayChangeNoBit) {
  const RunLayout layout{.name = "dp2_zero3", .dp = 2, .zero_stage = 3};
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
      const RunResult weights_away = on_gpu(weights, layout);
      EXPECT_EQ(weights_away.losses, expected.losses);
      EXPECT_EQ(weights_away.weights, expected.weights);
      RunTask all = weights;
      all.optimizer.offload = tier;
      all.optimizer.offload_segment_size = 4096;
      EXPECT_EQ(on_gpu(all, layout).weights, updated_on_host.weights);
    }
  }
}

/// GELU as a part of the products around it rounds less, and no more than that.
TEST_P(DeviceParity, GeluEpiloguesStayWithinTheErrorOfBf16) {
  RunTask fused = task(DType::BF16);
  if (fused.model.activation_func != ActivationFunction::Gelu) return;
  fused.gelu_epilogue = true;
  const RunResult gpu = on_gpu(fused), again = on_gpu(fused), cpu = on_cpu(task(DType::BF16)), exact = on_cpu(task());
  EXPECT_LE(relative_distance(gpu.losses, exact.losses), 1.5 * relative_distance(cpu.losses, exact.losses));
  EXPECT_EQ(gpu.weights, again.weights);
}

/// The loss scale comes down from where everything overflows, and what the host learns late changes no bit.
TEST_P(DeviceParity, FindsALossScaleThatFits) {
  RunTask fp16 = task(DType::F16);
  fp16.optimizer.initial_loss_scale = 0x1p20;
  const RunResult gpu = on_gpu(fp16), again = on_gpu(fp16);
  EXPECT_EQ(gpu.losses, again.losses);
  EXPECT_EQ(gpu.weights, again.weights);
  EXPECT_LT(gpu.losses.back(), gpu.losses.front());
}

/// Of sizes that products in fp8 take.
class Fp8DeviceParity : public DeviceParity {};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fp8DeviceParity);
INSTANTIATE_TEST_SUITE_P(Families, Fp8DeviceParity,
                         testing::ValuesIn(test::built_with_cuda() ? std::vector{Family{"llama_even", even()}}
                                                                   : std::vector<Family>{}),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });

/// The GPU is no further from what the CPU emulates than fp8 is from bf16; nor is a layout that cuts tensors.
TEST_P(Fp8DeviceParity, TwentyStepsStayWithinItsError) {
  RunTask in_fp8 = task(DType::BF16);
  in_fp8.fp8 = Fp8::Hybrid;
  const RunResult cpu = on_cpu(in_fp8), in_bf16 = on_cpu(task(DType::BF16));
  const double error = relative_distance(cpu.losses, in_bf16.losses);
  EXPECT_GT(error, 0);
  for (const RunLayout& layout : {RunLayout{}, RunLayout{.tp = 2, .sequence_parallel = true}})
    EXPECT_LE(relative_distance(on_gpu(in_fp8, layout).losses, cpu.losses), error) << layout.ranks() << " ranks";
}

const RunLayout kLayouts[]{
    {.name = "tp2", .tp = 2},
    {.name = "tp2_sp", .tp = 2, .sequence_parallel = true},
    {.name = "pp2", .pp = 2},
    {.name = "pp2_zb_h1", .pp = 2, .schedule = ScheduleKind::ZbH1},
    {.name = "dp2_zero1", .dp = 2, .zero_stage = 1},
    {.name = "dp2_zero3", .dp = 2, .zero_stage = 3},
    {.name = "dp4_zero1_hsdp", .dp = 4, .zero_stage = 1, .instances = 2},
    {.name = "dp4_zero3_hsdp", .dp = 4, .zero_stage = 3, .instances = 2},
    {.name = "tp2_sp_pp2_dp2_zero1", .tp = 2, .pp = 2, .dp = 2, .sequence_parallel = true, .zero_stage = 1},
};

// As closely as those of CPUs do (layout_parity_test.cpp).
TEST_P(DeviceParity, LayoutsOfRanksThatShareTheGpuAgree) {
  const RunResult one_rank = on_gpu(task());
  for (const RunLayout& layout : kLayouts) {
    SCOPED_TRACE(layout.name);
    const RunResult result = on_gpu(task(), layout);
    for (std::size_t i = 0; i < one_rank.losses.size(); ++i)
      EXPECT_LE(std::abs(result.losses[i] - one_rank.losses[i]) / one_rank.losses[i], 1e-5) << "step " << i;
  }
}

/// Activations come back from the host, and saves are copied, while the GPU computes.
TEST_P(DeviceParity, CopiesBesideTheComputingChangeNoBit) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    RunTask saving = task(dtype);
    saving.async_save = true;
    for (RunLayout layout : {RunLayout{}, RunLayout{.name = "pp2", .pp = 2}}) {
      SCOPED_TRACE(layout.name);
      const RunResult expected = on_gpu(task(dtype), layout);
      layout.activations = OffloadTier::Host;
      const RunResult result = on_gpu(saving, layout);
      EXPECT_EQ(result.losses, expected.losses);
      EXPECT_EQ(result.weights, expected.weights);
    }
  }
}

/// The host updates in its own way what the GPU would: close, and the same every time.
TEST_P(DeviceParity, AnUpdateOnTheHostStaysClose) {
  const RunResult expected = on_gpu(task());
  for (const double fraction : {1.0, 0.5}) {
    RunTask away = task();
    away.optimizer.offload = OffloadTier::Host;
    away.optimizer.offload_fraction = fraction;
    away.optimizer.offload_segment_size = 4096;
    const RunResult result = on_gpu(away), again = on_gpu(away);
    for (std::size_t i = 0; i < expected.losses.size(); ++i)
      EXPECT_LE(std::abs(result.losses[i] - expected.losses[i]) / expected.losses[i], 1e-5) << "step " << i;
    EXPECT_EQ(result.weights, again.weights);
  }
}

TEST_P(DeviceParity, TheSameBitsTwice) {
  for (const DType dtype : {DType::F32, DType::BF16}) {
    const RunResult first = on_gpu(task(dtype)), second = on_gpu(task(dtype));
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_EQ(first.grad_norms, second.grad_norms);
    EXPECT_EQ(first.weights, second.weights);
  }
}

}  // namespace
}  // namespace mcpp
