// Options that are incompatible with compressed communication are reported before anything starts, all together.
#include <gmock/gmock.h>

#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/low_precision_check.h"
#include "megatron_cpp/setup/run_summary.h"

namespace mcpp {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::UnorderedElementsAre;

Config config_of(i64 zero_stage) {
  Config config;
  config.model.vocab_size = 64;
  config.training.global_batch_size = 8;
  config.training.train_iters = 10;
  config.parallel.zero_stage = zero_stage;
  return config;
}

TEST(CompressedCommunicationConfigTest, IsOffByDefault) {
  const ParallelConfig p;
  EXPECT_EQ(p.node_ranks, 1);
  EXPECT_FALSE(p.formats.quantized_weights || p.formats.quantized_gradients);
  EXPECT_EQ(p.formats.grad_reduce_dtype, GradDType::Fp32);
}

TEST(CompressedCommunicationConfigTest, NamesAllConflictsWithZeroStage) {
  Config config = config_of(0);
  config.parallel.node_ranks = 2;
  config.parallel.formats.quantized_weights = config.parallel.formats.quantized_gradients = true;
  EXPECT_THAT(layout_problems(config, 4),
              UnorderedElementsAre(HasSubstr("zero_hpz_partition_size = 2 has no effect with zero_stage = 0"),
                                   HasSubstr("zero_quantized_weights = true has no effect with zero_stage = 0"),
                                   HasSubstr("zero_quantized_gradients = true has no effect with zero_stage = 0")));
  config.parallel.zero_stage = 2;
  config.parallel.formats.quantized_gradients = false;
  EXPECT_THAT(layout_problems(config, 4), ElementsAre(HasSubstr("zero_hpz_partition_size = 2 has no effect with")));
  config.parallel.formats.quantized_gradients = true;
  EXPECT_THAT(layout_problems(config, 4), IsEmpty());  // it splits the sums of gradients into two steps
  EXPECT_THAT(describe_run(config, 4), HasSubstr("first summed within groups of 2 ranks\n"));
  EXPECT_THAT(describe_run(config, 4), Not(HasSubstr("second copy")));
  config.parallel.zero_stage = 3;
  EXPECT_THAT(layout_problems(config, 4), IsEmpty());
}

TEST(CompressedCommunicationConfigTest, Fp8WeightsNeedZeroStageRecipeAndNoOtherFormat) {
  Config config = config_of(0);
  config.parallel.formats.fp8_param_gather = config.parallel.formats.quantized_weights = true;
  EXPECT_THAT(layout_problems(config, 4),
              IsSupersetOf({HasSubstr("fp8_param_gather = true has no effect with zero_stage = 0"),
                            HasSubstr("fp8_param_gather = true and zero_quantized_weights = true are two ways")}));
  constexpr const char* kNeedsRecipe = "parallel.fp8_param_gather: needs linear layers with the recipe";
  config = config_of(3);
  config.parallel.formats.fp8_param_gather = true;
  EXPECT_THAT(layout_problems(config, 4), IsEmpty());
  EXPECT_THAT(config.conflicts(), Contains(HasSubstr(kNeedsRecipe)));
  config.training.precision = Precision::Bf16;
  config.training.fp8 = Fp8::Hybrid;
  EXPECT_THAT(config.conflicts(), IsEmpty());
  EXPECT_THAT(low_precision_problems(config, 4), IsEmpty());
  EXPECT_THAT(describe_run(config, 4), HasSubstr("sent in fp8 where GEMMs round them"));
  constexpr const char* kNoLayer = "parallel.fp8_param_gather: no linear layer has the recipe";
  for (const Fp8RecipeName recipe : {Fp8RecipeName::Mxfp8, Fp8RecipeName::Delayed}) {
    config.training.fp8_recipe = recipe;
    EXPECT_THAT(low_precision_problems(config, 4), Contains(HasSubstr(kNoLayer)));
  }
  config.training.low_precision = {{.modules = OneOrList<std::string>("*.linear_fc1"),
                                    .recipe = GemmRecipe::Blockwise,
                                    .wgrad = PassRecipeName::Bf16}};
  config.model.hidden_size = 128;
  EXPECT_THAT(low_precision_problems(config, 4), IsEmpty());
  config.model.hidden_size = 96;  // rows straddle the groups of 64 weights that share a scale in messages
  EXPECT_THAT(low_precision_problems(config, 4), Contains(HasSubstr(kNoLayer)));
}

TEST(CompressedCommunicationConfigTest, Bf16GradientsNeedZeroStageAndNoOtherCompression) {
  Config config = config_of(0);
  config.parallel.formats.grad_reduce_dtype = GradDType::Bf16;
  EXPECT_THAT(layout_problems(config, 4),
              ElementsAre(HasSubstr("grad_reduce_dtype = \"bf16\" has no effect with zero_stage = 0, where every rank "
                                    "receives all gradients; use zero_stage 1, 2 or 3")));
  for (const i64 stage : {1, 2, 3}) {
    config.parallel.zero_stage = stage;
    EXPECT_THAT(layout_problems(config, 4), IsEmpty());
  }
  EXPECT_THAT(describe_run(config, 4), HasSubstr("sent in bf16, summed in fp32\n"));
  EXPECT_THAT(describe_run(config, 4), Not(HasSubstr("first summed within groups")));
  config.parallel.zero_stage = 1;
  config.parallel.node_ranks = 2;
  EXPECT_THAT(layout_problems(config, 4), IsEmpty());  // it splits the sums of gradients into two steps
  EXPECT_THAT(describe_run(config, 4), HasSubstr("first summed within groups of 2 ranks\n"));
  config.parallel.formats.power_sgd_rank = 4;
  EXPECT_THAT(layout_problems(config, 4),
              ElementsAre("power_sgd_rank = 4 and grad_reduce_dtype = \"bf16\" are two ways to send the same "
                          "gradients; use one of them"));
  config.parallel.formats.power_sgd_rank = 0;
  config.parallel.formats.quantized_gradients = true;
  EXPECT_THAT(layout_problems(config, 4),
              ElementsAre("zero_quantized_gradients = true and grad_reduce_dtype = \"bf16\" are two ways to send the "
                          "same gradients; use one of them"));
  config.parallel.formats.quantized_gradients = false;
  config.parallel.formats.grad_reduce_dtype = GradDType::Fp32;
  EXPECT_THAT(layout_problems(config, 4),
              ElementsAre(HasSubstr("or grad_reduce_dtype = \"bf16\" or zero_quantized_gradients = true, which it "
                                    "splits into two steps")));
}

TEST(CompressedCommunicationConfigTest, PowerSgdStartIterNeedsPowerSgdRank) {
  Config config = config_of(1);
  config.parallel.power_sgd_start_iter = 10;
  EXPECT_THAT(layout_problems(config, 4),
              UnorderedElementsAre(HasSubstr("power_sgd_start_iter = 10 is only read with power_sgd_rank")));
  config.parallel.formats.power_sgd_rank = 4;
  EXPECT_THAT(layout_problems(config, 4), IsEmpty());
  EXPECT_THAT(describe_run(config, 4), HasSubstr("PowerSGD factors of rank 4 after iteration 10"));
  Config other = config;
  other.parallel.power_sgd_start_iter = 20;
  ASSERT_EQ(differences(config, other).size(), 1U);
  EXPECT_EQ(differences(config, other)[0].key, "parallel.power_sgd_start_iter");
}

TEST(CompressedCommunicationConfigTest, PowerSgdNeedsUnshardedGradients) {
  Config config = config_of(1);
  config.parallel.formats.power_sgd_rank = 4;
  EXPECT_THAT(layout_problems(config, 4), IsEmpty());
  EXPECT_THAT(config.conflicts(), IsEmpty());
  config.parallel.zero_stage = 3;
  config.parallel.formats.quantized_gradients = true;
  EXPECT_THAT(
      layout_problems(config, 4),
      UnorderedElementsAre(HasSubstr("power_sgd_rank = 4 needs unsharded gradients, but zero_stage = 3 shards them"),
                           HasSubstr("two ways to send the same gradients")));
  config.training.precision = Precision::Fp16;
  config.checkpoint.async_save = true;
  config.checkpoint.save = "runs/x";
  const std::vector<std::string> conflicts = config.conflicts();
  EXPECT_THAT(conflicts, testing::Contains(HasSubstr("does not support a dynamic loss scale")));
  EXPECT_THAT(conflicts, testing::Contains(HasSubstr("remove checkpoint.async_save")));
}

TEST(CompressedCommunicationConfigTest, SecondaryShardSizeMustDivideShardingRanks) {
  Config config = config_of(3);
  config.parallel.node_ranks = 3;
  EXPECT_THAT(layout_problems(config, 8), ElementsAre(HasSubstr("zero_hpz_partition_size = 3 does not divide")));
  config.parallel.node_ranks = 4;
  EXPECT_THAT(layout_problems(config, 8), IsEmpty());
  config.parallel.instances = 2;
  EXPECT_THAT(layout_problems(config, 8),
              ElementsAre(HasSubstr("= 4 must be smaller than the number of ranks that share")));
}

/// Options that change results define a run; the source of weights does not.
TEST(CompressedCommunicationConfigTest, LossyOptionsDefineRun) {
  const std::vector<std::string> keys = run_defining_keys();
  EXPECT_EQ(std::ranges::count(keys, "parallel.zero_quantized_weights"), 1);
  EXPECT_EQ(std::ranges::count(keys, "parallel.zero_quantized_gradients"), 1);
  EXPECT_EQ(std::ranges::count(keys, "parallel.grad_reduce_dtype"), 1);
  EXPECT_EQ(std::ranges::count(keys, "parallel.zero_hpz_partition_size"), 0);
}

TEST(CompressedCommunicationConfigTest, IsReportedInPlan) {
  Config config = config_of(3);
  EXPECT_THAT(describe_run(config, 4), Not(HasSubstr("int8 communication")));
  const double params = estimate_memory_by_stage(config, 4)[0].params;
  config.parallel.node_ranks = 2;
  config.parallel.formats.quantized_weights = config.parallel.formats.quantized_gradients = true;
  EXPECT_THAT(describe_run(config, 4), HasSubstr("weights and gradients\n"));
  EXPECT_THAT(describe_run(config, 4), HasSubstr("of the weights, within groups of 2 ranks\n"));
  EXPECT_NE(estimate_memory_by_stage(config, 4)[0].params, params);
}

}  // namespace
}  // namespace mcpp
