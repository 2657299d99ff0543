// Predicted time of low-precision recipes, compared with bytes and operations derived by hand.
#include <gtest/gtest.h>

#include "base/integer_math.h"
#include "plan/cost/layer_time.h"
#include "plan/step/step_time.h"
#include "tests/support/layouts/toy_cluster.h"

namespace mcpp::low_precision_time_test {
namespace {

using enum GemmRecipe;

constexpr i64 kHidden = 2048, kLayers = 8;
constexpr double kTokens = 2048;

Hardware hardware_with_all_formats() {
  Hardware hardware = test::toy_cluster(100, 100);
  DeviceRates& d = hardware.device;
  d.fp8_peak = 600, d.fp8_attained = 450;
  d.blockwise_peak = 600, d.blockwise_attained = 400;
  d.mxfp8_peak = 600, d.mxfp8_attained = 425;
  d.nvfp4_peak = 1200, d.nvfp4_attained = 800;
  return hardware;
}
Hardware hardware_with_fp8_only() {
  Hardware hardware = test::toy_cluster(100, 100);
  hardware.device.fp8_peak = 600, hardware.device.fp8_attained = 450;
  return hardware;
}

Fp8Layers all_layers(const PassRecipes& recipe) {
  return {.recipe = recipe, .first = 0, .end = kLayers};
}

UnitTime time_of_layer(const Hardware& hardware, const Fp8Layers& fp8, i64 layer = 0) {
  Workload work = test::toy_workload(kLayers, kHidden, 16, 8);
  work.fp8 = fp8;
  const KernelTraits program;
  return layer_time({hardware, program, work, {}}, block_spec(work.model, layer), layer);
}

/// Elements of the operands of a layer's linear layers qkv, proj, fc1 and fc2.
constexpr double kWeights = 12.0 * kHidden * kHidden;
constexpr double kInputs = kTokens * kHidden * (1 + 1 + 1 + 4), kGradients = kTokens * kHidden * (3 + 1 + 4 + 1);

struct EncodeBytes {
  GemmRecipe recipe;
  double per_operand;  ///< bytes per element to read bf16 and to write codes and scales
  double amax;         ///< bytes per element to find the largest magnitude
  double codes;        ///< bytes per element of codes and scales
};
constexpr EncodeBytes kEncodeBytes[]{{Tensorwise, 3, 2, 1},
                                     {Blockwise, 3 + 4.0 / 128, 0, 1 + 4.0 / 128},
                                     {Mxfp8, 3 + 1.0 / 32, 0, 1 + 1.0 / 32},
                                     {Nvfp4, 2.5625, 2, 0.5625}};

/// Returns the bytes that rounding adds to the passes of a layer. Operands are encoded for each GEMM. The Hadamard
/// transform reads and writes both operands of weight gradients.
double rounding_bytes(const EncodeBytes& bytes, bool is_emulated) {
  const double operand = bytes.per_operand + (is_emulated ? bytes.codes + 2 : 0);
  const double amax = bytes.amax * (kInputs + kWeights + kGradients);
  const double forward = operand * (kInputs + kWeights), dgrad = operand * (kGradients + kWeights),
               wgrad = operand * (kGradients + kInputs);
  const double hadamard = bytes.recipe == Nvfp4 ? 4 * (kGradients + kInputs) : 0;
  return amax + forward + dgrad + wgrad + hadamard;
}

TEST(LowPrecisionTimeTest, MovesBytesOfEachRecipe) {
  const Hardware native = hardware_with_all_formats(), emulating = hardware_with_fp8_only();
  for (const EncodeBytes& bytes : kEncodeBytes) {
    for (const Hardware& hardware : {native, emulating}) {
      const UnitTime plain = time_of_layer(hardware, {}),
                     rounded = time_of_layer(hardware, all_layers(PassRecipes::of(bytes.recipe)));
      const bool is_emulated = !hardware.has_gemms(gemm_type_of(bytes.recipe));
      const double added = rounded.total().elementwise - plain.total().elementwise;
      // Largest magnitudes start from zeros, which takes 20 bytes for each linear layer.
      EXPECT_NEAR(added / hardware.traffic_seconds(rounding_bytes(bytes, is_emulated)), 1, 1e-7)
          << enum_name(bytes.recipe) << is_emulated;
      EXPECT_EQ(rounded.total().gemms == plain.total().gemms, is_emulated) << enum_name(bytes.recipe);
    }
  }
}

// Large GEMMs are bound by the rate of their format.
TEST(LowPrecisionTimeTest, MultipliesAtRateOfFormat) {
  const Hardware hardware = hardware_with_all_formats();
  const double plain = time_of_layer(hardware, {}).total().gemms;
  for (const auto& [recipe, rate] :
       {std::pair(Tensorwise, 450.0), {Blockwise, 400.0}, {Mxfp8, 425.0}, {Nvfp4, 800.0}}) {
    const double rounded = time_of_layer(hardware, all_layers(PassRecipes::of(recipe))).total().gemms;
    EXPECT_NEAR(plain / rounded, rate / 250, 0.02) << enum_name(recipe);
  }
}

TEST(LowPrecisionTimeTest, PassesHaveTheirOwnRecipes) {
  const Hardware hardware = hardware_with_all_formats();
  const UnitTime plain = time_of_layer(hardware, {}), all = time_of_layer(hardware, all_layers(PassRecipes::of(Mxfp8)));
  const UnitTime no_wgrad = time_of_layer(hardware, all_layers({.forward = Mxfp8, .dgrad = Mxfp8, .wgrad = Bf16}));
  EXPECT_EQ(no_wgrad.forward.gemms, all.forward.gemms);
  EXPECT_EQ(no_wgrad.backward_input.gemms, all.backward_input.gemms);
  EXPECT_EQ(no_wgrad.backward_weight.gemms, plain.backward_weight.gemms);
  EXPECT_EQ(no_wgrad.backward_weight.elementwise, plain.backward_weight.elementwise);
}

// A step is the sum of its layers, each with the recipes of its own name.
TEST(LowPrecisionTimeTest, TablesApplyToNamedLayers) {
  const Hardware hardware = hardware_with_all_formats();
  const KernelTraits program;
  const auto gemms_of_step = [&](const Fp8Layers& fp8) {
    Workload work = test::toy_workload(kLayers, kHidden, 16, 1);
    work.fp8 = fp8;
    return step_time({hardware, program, work, {}}).work.gemms;
  };
  const double plain = gemms_of_step({}), all_fp4 = gemms_of_step(all_layers(PassRecipes::of(Nvfp4)));
  const double saved = (plain - all_fp4) / kLayers;  // by a layer in NVFP4
  const Fp8Layers two{.modules = {{{"decoder.layers.0.*", "decoder.layers.5.*"}, PassRecipes::of(Nvfp4)}}};
  EXPECT_NEAR((plain - gemms_of_step(two)) / saved, 2, 1e-9);
  Fp8Layers all_but_two = all_layers(PassRecipes::of(Nvfp4));
  all_but_two.modules = {{{"decoder.layers.0.*", "decoder.layers.5.*"}, PassRecipes::of(Bf16)}};
  EXPECT_NEAR((plain - gemms_of_step(all_but_two)) / saved, kLayers - 2, 1e-9);
  Fp8Layers middle = all_layers(PassRecipes::of(Nvfp4));
  middle.first = 1, middle.end = kLayers - 2;  // first_last_layers_bf16
  EXPECT_NEAR((plain - gemms_of_step(middle)) / saved, kLayers - 3, 1e-9);
  const Fp8Layers output{.modules = {{{"output_layer"}, PassRecipes::of(Mxfp8)}}};
  EXPECT_LT(gemms_of_step(output), plain);
}

TEST(LowPrecisionTimeTest, EqualRecipesShareRecords) {
  ModelConfig model = test::toy_workload(kLayers, kHidden, 16, 1).model;
  const Fp8Layers fp8{.modules = {{{"decoder.layers.0.*", "*.7.mlp.*"}, PassRecipes::of(Mxfp8)},
                                  {{"decoder.*"}, PassRecipes::of(Nvfp4)}}};
  const ModelMeasurements measurements(model, fp8);
  EXPECT_EQ(measurements.blocks.kinds.size(), 3);
  EXPECT_EQ(measurements.blocks.first_layers, (std::vector<i64>{0, 1, 7}));
  EXPECT_EQ(measurements.blocks.count(0, kLayers), (std::vector<i64>{1, 6, 1}));
  EXPECT_EQ(ModelMeasurements(model).blocks.kinds.size(), 1);
}

// GPUs emulate the recipes of routed experts: operands are rounded, and multiplied in bf16.
TEST(LowPrecisionTimeTest, ExpertsAreRoundedAndMultipliedInBf16) {
  const Hardware hardware = hardware_with_all_formats();
  const KernelTraits program;
  Workload work = test::toy_mixture(2, kHidden, 16, 8, 8);
  const auto layer = [&] {
    return layer_time({hardware, program, work, {.dp = 8, .ep = 8}}, feed_forward_of(block_spec(work.model, 0)));
  };
  const UnitTime plain = layer();
  PassRecipes recipe = PassRecipes::of(Mxfp8);
  recipe.wgrad = Bf16;
  work.fp8.modules = {{{"*.experts.*"}, recipe}};
  const UnitTime rounded = layer();
  EXPECT_EQ(rounded.total().gemms, plain.total().gemms);
  EXPECT_GT(rounded.forward.elementwise, plain.forward.elementwise);
  EXPECT_GT(rounded.backward_input.elementwise, plain.backward_input.elementwise);
  EXPECT_EQ(rounded.backward_weight.elementwise, plain.backward_weight.elementwise);
}

TEST(HardwareTest, DerivesRatesThatAreNotMeasured) {
  Hardware hardware = test::toy_cluster(100, 100);  // bf16: 250 of 300
  EXPECT_FALSE(hardware.has_gemms(GemmType::Nvfp4));
  hardware.device.nvfp4_peak = 1200;
  EXPECT_TRUE(hardware.has_gemms(GemmType::Nvfp4));
  EXPECT_FALSE(hardware.has_attained_rate(GemmType::Nvfp4));
  EXPECT_DOUBLE_EQ(hardware.gemm_flops(GemmType::Nvfp4), 1000e12);
  hardware.device.fp8_peak = 600;
  EXPECT_DOUBLE_EQ(hardware.gemm_flops(GemmType::Fp8), 500e12);
  hardware.device.fp8_attained = 450;  // 75 %
  EXPECT_DOUBLE_EQ(hardware.gemm_flops(GemmType::Nvfp4), 900e12);
  hardware.device.nvfp4_attained = 1201;
  const std::vector<std::string> conflicts = hardware.conflicts();
  ASSERT_EQ(conflicts.size(), 1);
  EXPECT_EQ(conflicts[0], "device.nvfp4_attained: 1201 is above nvfp4_peak = 1200");
}

}  // namespace
}  // namespace mcpp::low_precision_time_test
