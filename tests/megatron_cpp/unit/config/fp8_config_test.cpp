// Options that are incompatible with fp8 are reported before anything starts, all together; plans account for fp8.
#include <gmock/gmock.h>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/setup/layout_search.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/run_summary.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"

namespace mcpp::fp8_config_test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

Config config_in_fp8() {
  Config config;
  config.model.vocab_size = 64;
  config.training.global_batch_size = 8;
  config.training.train_iters = 10;
  config.training.precision = Precision::Bf16;
  config.training.fp8 = Fp8::Hybrid;
  return config;
}

std::string error_of(const std::string& training) {
  return test::input_error(
      [&] { parse_config("[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n" + training, "run.toml"); });
}

TEST(Fp8ConfigTest, IsOffByDefault) {
  EXPECT_EQ(fp8_layers(Config()).end, 0);
  EXPECT_THAT(config_in_fp8().conflicts(), IsEmpty());
}

TEST(Fp8ConfigTest, NamesAllowedValues) {
  EXPECT_EQ(error_of("precision = 'bf16'\nfp8 = 'e5m2'"),
            "run.toml:6:1: training.fp8: must be one of \"none\", \"e4m3\", \"hybrid\", not \"e5m2\"");
  EXPECT_THAT(error_of("precision = 'bf16'\nfp8 = 'e4m3'\nfp8_recipe = 'rowwise'"),
              HasSubstr("training.fp8_recipe: must be one of \"tensorwise\", \"delayed\", \"blockwise\", \"mxfp8\", "
                        "not \"rowwise\""));
  EXPECT_THAT(error_of("precision = 'bf16'\nfp8_format = 'hybrid'"), HasSubstr("did you mean training.fp8?"));
}

TEST(Fp8ConfigTest, NeedsBf16) {
  for (const char* precision : {"fp32", "fp16"})
    EXPECT_THAT(error_of(str("precision = '", precision, "'\nfp8 = 'hybrid'")),
                HasSubstr("training.fp8: needs training.precision \"bf16\""));
}

TEST(Fp8ConfigTest, RejectsKeysWithoutEffect) {
  EXPECT_THAT(error_of("first_last_layers_bf16 = true"),
              HasSubstr("training.first_last_layers_bf16: only read when fp8 is \"e4m3\" or \"hybrid\""));
  EXPECT_THAT(
      error_of("precision = 'bf16'\nfp8 = 'e4m3'\nnum_layers_at_start_in_bf16 = 2\nnum_layers_at_end_in_bf16 = 0"),
      AllOf(HasSubstr("training.num_layers_at_start_in_bf16: only read with first_last_layers_bf16"),
            HasSubstr("training.num_layers_at_end_in_bf16: only read with first_last_layers_bf16")));
  EXPECT_THAT(error_of("precision = 'bf16'\nfp8 = 'e4m3'\nfp8_amax_history_len = 4\n"
                       "fp8_amax_compute_algo = 'most_recent'\nfp8_margin = 1"),
              AllOf(HasSubstr("training.fp8_amax_history_len: only read when fp8_recipe or a table of low_precision is "
                              "\"delayed\""),
                    HasSubstr("training.fp8_amax_compute_algo: only read"), HasSubstr("training.fp8_margin: only")));
}

TEST(Fp8ConfigTest, AcceptsDelayedKeysWhenOnlyTableUsesDelayed) {
  Config config = config_in_fp8();
  config.training.fp8_margin = 1;
  EXPECT_THAT(config.conflicts(), SizeIs(1));
  config.training.low_precision = {{.modules = OneOrList<std::string>("*.linear_fc1"), .recipe = GemmRecipe::Delayed}};
  EXPECT_THAT(config.conflicts(), IsEmpty());
}

TEST(Fp8ConfigTest, KeepsLayersInBf16AtBothEnds) {
  Config config = config_in_fp8();
  config.model.num_layers = 6;
  EXPECT_EQ(fp8_layers(config).first, 0);
  EXPECT_EQ(fp8_layers(config).end, 6);
  EXPECT_EQ(fp8_layers(config).recipe.gradients, Fp8Format::E5M2);
  config.training.fp8 = Fp8::E4m3;
  config.training.first_last_layers_bf16 = true;
  config.training.num_layers_at_end_in_bf16 = 3;
  EXPECT_EQ(fp8_layers(config).first, 1);
  EXPECT_EQ(fp8_layers(config).end, 3);
  EXPECT_EQ(fp8_layers(config).recipe.gradients, Fp8Format::E4M3);
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.training.num_layers_at_end_in_bf16 = 5;
  EXPECT_THAT(config.conflicts(), Contains(HasSubstr("leave none of the 6 layers in fp8")));
}

TEST(Fp8ConfigTest, NamesSizesThatGpuCannotMultiply) {
  Config config = config_in_fp8();
  config.model.hidden_size = 64;
  config.model.num_attention_heads = 8;
  config.model.ffn_hidden_size = 100;
  config.model.seq_length = 24;
  EXPECT_THAT(config.conflicts(), IsEmpty()) << "a CPU supports all sizes";
  config.device.device = DeviceType::Cuda;
  EXPECT_THAT(config.conflicts(), AllOf(Contains(HasSubstr("model.ffn_hidden_size per rank is 100")),
                                        Contains(HasSubstr("model.seq_length per rank is 24"))));
  config.model.ffn_hidden_size = 96;
  config.model.seq_length = 32;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.parallel.tp = 4;
  EXPECT_THAT(config.conflicts(), Contains(HasSubstr("model.ffn_hidden_size per rank is 24")));
}

/// The down projections of latent attention and of Kimi Delta Attention multiply only a rank's part of the sequence.
TEST(Fp8ConfigTest, NamesPartOfSequenceThatGpuCannotMultiply) {
  Config config = config_in_fp8();
  config.device.device = DeviceType::Cuda;
  config.model.hidden_size = 64, config.model.num_attention_heads = 8;
  config.model.seq_length = 48;
  config.parallel.tp = 2, config.parallel.sequence_parallel = true;
  const auto names_part = Contains(HasSubstr("model.seq_length per rank with parallel.sequence_parallel is 24"));
  EXPECT_THAT(config.conflicts(), Not(names_part)) << "other layers gather the sequence";
  config.model.recurrent.linear_attention_freq = {2};
  EXPECT_THAT(config.conflicts(), Not(names_part));
  config.model.recurrent.linear_attention_type = LinearAttentionType::KimiDeltaAttention;
  EXPECT_THAT(config.conflicts(), names_part);
  config.model.recurrent = {};
  config.model.mla.is_used = true;
  EXPECT_THAT(config.conflicts(), names_part);
  config.parallel.sequence_parallel = false;
  EXPECT_THAT(config.conflicts(), Not(names_part));
}

TEST(Fp8ConfigTest, RejectsChangeOnResume) {
  const Config now = config_in_fp8();
  Config before = now;
  before.training.fp8 = Fp8::None;
  EXPECT_THAT(test::input_error([&] { check_same_run(before, now, "iter_5", Log()); }),
              HasSubstr("training.fp8: \"none\" in the checkpoint, \"hybrid\" now"));
}

TEST(Fp8ConfigTest, IsReportedInPlan) {
  Config config = config_in_fp8();
  EXPECT_THAT(describe_run(config, 1),
              HasSubstr("bf16, linear maps of 12 layers in fp8 (hybrid, tensorwise), emulated"));
  config.training.fp8 = Fp8::None;
  EXPECT_THAT(describe_run(config, 1), Not(HasSubstr("fp8")));
}

/// A step of Llama 8B on H100 is faster in fp8, by less than GEMMs alone. Hardware without fp8 has no prediction.
TEST(Fp8ConfigTest, IsPredictedWhenHardwareSupportsIt) {
  Config config = load_config(test::source_folder() / "configs/llama_8b.toml");
  const Path folder = test::source_folder() / "configs/hardware";
  const auto seconds = [&](const char* hardware) {
    const Hardware h100 = load_hardware(hardware, folder).for_ranks(64);
    const Workload work = make_workload(config);
    check_low_precision_rates(h100, work);
    return predict_configured_step({h100, {}, work, {}}, config, 64).seconds;
  };
  config.parallel.tp = 2;
  config.parallel.zero_stage = 1;
  config.parallel.pp = 2;
  config.training.micro_batch_size = 1;
  config.training.precision = Precision::Bf16;
  const double bf16 = seconds("h100_sxm");
  config.training.fp8 = Fp8::Hybrid;
  const double fp8 = seconds("h100_sxm");
  EXPECT_LT(fp8, 0.95 * bf16);
  EXPECT_GT(fp8, 0.5 * bf16);
  EXPECT_THAT(test::input_error([&] { seconds("a100_80gb"); }),
              AllOf(HasSubstr("training.fp8: "), HasSubstr("has no fp8")));
}

}  // namespace
}  // namespace mcpp::fp8_config_test
