// Options that are incompatible with stochastic rounding are reported by name; plans account for it.
#include <gmock/gmock.h>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/setup/run_summary.h"
#include "tests/support/errors.h"

namespace mcpp::stochastic_rounding_config_test {
namespace {

using testing::HasSubstr;

Config parse(const std::vector<std::string>& overrides) {
  return parse_config("[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n", "run.toml", overrides);
}
std::string error_of(std::vector<std::string> overrides) {
  overrides.emplace_back("--optimizer.stochastic_rounding");
  return test::input_error([&] { parse(overrides); });
}

TEST(StochasticRoundingConfigTest, RejectsIncompatibleKeysByName) {
  const std::string bf16 = "--training.precision=bf16";
  EXPECT_EQ(error_of({bf16}), "");
  for (const char* precision : {"fp32", "fp16"})
    EXPECT_THAT(error_of({str("--training.precision=", precision)}),
                HasSubstr("optimizer.stochastic_rounding: requires training.precision \"bf16\""));
  EXPECT_THAT(error_of({bf16, "--optimizer.store_param_remainders"}),
              HasSubstr("optimizer.store_param_remainders: stochastic_rounding stores no master weights"));
  EXPECT_THAT(error_of({bf16, "--optimizer.ema_decay=0.9"}), HasSubstr("remove ema_decay or stochastic_rounding"));
}

TEST(StochasticRoundingConfigTest, ChangeMustBeAllowed) {
  const Config saved = parse({"--training.precision=bf16"});
  Config now = parse({"--training.precision=bf16", "--optimizer.stochastic_rounding"});
  const auto error = [&] { return test::input_error([&] { check_same_run(saved, now, "runs/a/iter_7", Log()); }); };
  EXPECT_THAT(error(), HasSubstr("optimizer.stochastic_rounding"));
  now.checkpoint.allow_changed_keys = {"optimizer.stochastic_rounding"};
  EXPECT_EQ(error(), "");
}

TEST(StochasticRoundingConfigTest, PlansCountNoMasterWeights) {
  const auto states = [](const std::vector<std::string>& overrides) {
    return states_per_weight(parse(overrides)).master(DType::BF16);
  };
  EXPECT_EQ(states({"--training.precision=bf16"}), 1);
  EXPECT_EQ(states({"--training.precision=bf16", "--optimizer.stochastic_rounding"}), 0);
  const StatesPerWeight fp8 = states_per_weight(parse(
      {"--training.precision=bf16", "--optimizer.exp_avg_dtype=fp8_e4m3", "--optimizer.exp_avg_sq_dtype=fp8_e5m2"}));
  EXPECT_EQ(fp8.matrix_states, 2 * (17.0 / 16) / 4);
  EXPECT_TRUE(fp8.has_encoded_moments);
}

}  // namespace
}  // namespace mcpp::stochastic_rounding_config_test
