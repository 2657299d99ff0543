#include "megatron_cpp/config/variants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace mcpp::variants_test {
namespace {

using testing::HasSubstr;

Config base(const std::vector<std::string>& options = {}) {
  return parse_config(R"([model]
num_layers = 2
vocab_size = 100
[training]
train_iters = 5
micro_batch_size = 4
precision = "bf16"
[data]
mock_data = true
)",
                      "run.toml", options);
}

std::string error(const std::string& toml) {
  return test::input_error([&] { parse_variants(base(), toml, "v.toml"); });
}

constexpr const char* kBaseline = "[[variant]]\nname = \"bf16\"\n";

TEST(VariantsTest, ChangesOnlyKeysOfVariant) {
  const std::vector<Variant> variants = parse_variants(base(), std::string(kBaseline) + R"(
[[variant]]
name = "mxfp8"
max_difference = 0.25
[variant.training]
fp8 = "e4m3"
fp8_recipe = "mxfp8"

[[variant]]
name = "experts"
[variant.optimizer]
lr = 1e-2
[[variant.training.low_precision]]
modules = "decoder.*"
recipe = "nvfp4"
)",
                                                       "v.toml");
  ASSERT_EQ(variants.size(), 3U);
  EXPECT_EQ(variants[0].name, "bf16");
  EXPECT_EQ(print_config(variants[0].config), print_config(base()));
  EXPECT_FALSE(variants[0].max_difference.has_value());
  EXPECT_EQ(variants[1].max_difference, 0.25);
  EXPECT_EQ(print_config(variants[1].config),
            print_config(base({"--training.fp8=e4m3", "--training.fp8_recipe=mxfp8"})));
  EXPECT_EQ(variants[2].config.optimizer.lr, 1e-2);
  ASSERT_EQ(variants[2].config.training.low_precision.size(), 1U);
  EXPECT_EQ(variants[2].config.training.low_precision[0].recipe, GemmRecipe::Nvfp4);
  EXPECT_EQ(variants[2].config.training.fp8, Fp8::None);
}

TEST(VariantsTest, ReportsEveryProblemWithLocation) {
  const std::string text = error(R"([[variant]]
name = "bf16"
[[variant]]
name = "bf16"
[variant.training]
fp9 = "e4m3"
precision = "int8"
[[variant]]
[variant.training]
fp8_recipe = "mxfp8"
)");
  EXPECT_THAT(text, HasSubstr("v.toml:3:1: variant.name: \"bf16\" is also the name of an earlier variant"));
  EXPECT_THAT(text, HasSubstr("v.toml:6:1: variant.training.fp9: unknown key; did you mean training.fp8?"));
  EXPECT_THAT(text, HasSubstr("v.toml:7:1: variant.training.precision: must be one of"));
  EXPECT_THAT(text, HasSubstr("v.toml:8:1: variant.name: is missing"));
  EXPECT_THAT(text, HasSubstr("v.toml:10:1: variant.training.fp8_recipe: only read"));
}

TEST(VariantsTest, RejectsKeysThatAllVariantsShare) {
  const std::string text = error(std::string(kBaseline) + R"([[variant]]
name = "b"
[variant.training]
seed = 7
[variant.checkpoint]
save = "runs/b"
)");
  EXPECT_THAT(text, HasSubstr("variant.training.seed: all variants train with the same seeds"));
  EXPECT_THAT(text, HasSubstr("variant.checkpoint.save: applies to all variants"));
  EXPECT_THAT(error(str(kBaseline, "[[variant]]\nname = \"b\"\n[training]\nfp8 = \"e4m3\"\n")),
              HasSubstr("v.toml: training.fp8: is in no [[variant]]"));
}

TEST(VariantsTest, RejectsFilesWithoutComparison) {
  EXPECT_THAT(error(""), HasSubstr("v.toml: has 0 [[variant]] tables; a comparison needs at least two"));
  EXPECT_THAT(error(kBaseline), HasSubstr("v.toml: has 1 [[variant]] tables"));
  EXPECT_THAT(error("[variant]\nname = \"a\"\n"), HasSubstr("is a list of tables; write each as [[variant]]"));
  EXPECT_THAT(error("[[variant]\n"), HasSubstr("v.toml:1:"));
  EXPECT_THAT(error(str(kBaseline, "[[variant]]\nname = \"b\"\nmax_difference = -1\n")),
              HasSubstr("variant.max_difference: must be at least 0"));
}

TEST(VariantsTest, ReportsViolatedRulesBetweenKeys) {
  EXPECT_THAT(
      error(str(kBaseline, "[[variant]]\nname = \"b\"\n[variant.training]\nprecision = \"fp32\"\nfp8 = \"e4m3\"\n")),
      HasSubstr("v.toml:"));
}

}  // namespace
}  // namespace mcpp::variants_test
