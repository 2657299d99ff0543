#include "parallel/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

LayoutRules good_rules() {
  return {.world_size = 16,
          .sizes = {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 4},
          .stages = {.num_layers = 24},
          .num_attention_heads = 16,
          .num_query_groups = 8,
          .ffn_hidden_size = 4096,
          .padded_vocab_size = 50304,
          .seq_length = 1024,
          .micro_batch_size = 2,
          .global_batch_size = 32};
}

TEST(LayoutTest, HasNoConflictsWhenValid) {
  EXPECT_THAT(layout_conflicts(good_rules()), IsEmpty());
}

TEST(LayoutTest, ReportsAllConflictsWithNearestValidValues) {
  LayoutRules rules = good_rules();
  rules.sizes.tensor_model_parallel_size = 3;
  rules.stages.num_layers = 22;
  rules.global_batch_size = 33;
  EXPECT_THAT(
      layout_conflicts(rules),
      UnorderedElementsAre(
          HasSubstr("the number of ranks = 16 is not a multiple of"),
          "tensor_model_parallel_size = 3 does not divide num_attention_heads = 16; the nearest that do are 2 and 4",
          "tensor_model_parallel_size = 3 neither divides num_query_groups = 8 nor is a multiple of it; the nearest "
          "that do are 2 and 4",
          "tensor_model_parallel_size = 3 does not divide ffn_hidden_size = 4096; the nearest that do are 2 and 4",
          HasSubstr(
              "num_layers = 22 is not a multiple of pipeline_model_parallel_size = 4; the nearest multiples are 20 "
              "and 24"),
          HasSubstr("global_batch_size = 33 is not a multiple of micro_batch_size x data-parallel ranks (1) = 2; the "
                    "nearest multiples are 32 and 34")));
}

TEST(LayoutTest, UnevenStagesReplaceDivisibilityRule) {
  LayoutRules rules = good_rules();
  rules.stages.num_layers = 22;
  rules.stages.decoder_first_pipeline_num_layers = 4;
  EXPECT_THAT(layout_conflicts(rules), IsEmpty());
  rules.stages.pipeline_model_parallel_layout = "Et|L";
  EXPECT_THAT(layout_conflicts(rules), testing::Contains(HasSubstr("it has 1 layers (t), but num_layers = 22")));
}

TEST(LayoutTest, OptimizerInstancesMustDivideDataParallelRanks) {
  LayoutRules rules = good_rules();
  rules.world_size = 32;
  rules.sizes.num_distributed_optimizer_instances = 3;
  EXPECT_THAT(
      layout_conflicts(rules),
      ElementsAre("num_distributed_optimizer_instances = 3 does not divide the number of data-parallel ranks = 4; "
                  "the nearest that do are 2 and 4"));
}

TEST(LayoutTest, HpzPartitionMustDivideRanksThatShareWeights) {
  LayoutRules rules = good_rules();
  rules.sizes = {.num_distributed_optimizer_instances = 2, .zero_hpz_partition_size = 4};
  rules.world_size = 16, rules.global_batch_size = 0;
  EXPECT_THAT(layout_conflicts(rules), IsEmpty());
  rules.sizes.zero_hpz_partition_size = 3;
  EXPECT_THAT(layout_conflicts(rules),
              ElementsAre("zero_hpz_partition_size = 3 does not divide the number of ranks that share the weights = 8; "
                          "the nearest that do are 2 and 4"));
  rules.sizes.zero_hpz_partition_size = 8;
  EXPECT_THAT(layout_conflicts(rules),
              ElementsAre(HasSubstr("= 8 must be smaller than the number of ranks that share the weights")));
  rules.world_size = 0;
  EXPECT_THAT(layout_conflicts(rules), IsEmpty());
}

TEST(LayoutTest, RanksMayShareQueryGroups) {
  LayoutRules rules = good_rules();
  rules.sizes = {.tensor_model_parallel_size = 8};
  for (const i64 groups : {1, 2, 4, 8, 16}) {
    rules.num_query_groups = groups;
    EXPECT_THAT(layout_conflicts(rules), IsEmpty()) << groups;
  }
  rules.num_attention_heads = 24;
  rules.num_query_groups = 3;
  EXPECT_THAT(
      layout_conflicts(rules),
      ElementsAre("tensor_model_parallel_size = 8 neither divides num_query_groups = 3 nor is a multiple of it; "
                  "the nearest that do are 6 and 9"));
}

TEST(LayoutTest, ChecksSequenceAndExpertRules) {
  LayoutRules rules = good_rules();
  rules.sizes = {.tensor_model_parallel_size = 4, .context_parallel_size = 2, .expert_model_parallel_size = 2};
  rules.seq_length = 1026;
  rules.sequence_parallel = true;
  EXPECT_THAT(layout_conflicts(rules),
              UnorderedElementsAre(HasSubstr("x context_parallel_size = 8; the nearest multiples are 1024 and 1032"),
                                   HasSubstr("needs a model with experts")));
  rules.sizes = {.tensor_model_parallel_size = 3, .context_parallel_size = 2};
  rules.world_size = 6, rules.num_attention_heads = rules.num_query_groups = 3, rules.ffn_hidden_size = 96;
  rules.padded_vocab_size = 387, rules.seq_length = 20;
  EXPECT_THAT(layout_conflicts(rules), ElementsAre(HasSubstr("= 12; the nearest multiples are 12 and 24")))
      << "one that satisfies all rules";
  rules.sequence_parallel = false;
  rules.seq_length = 1026;
  EXPECT_THAT(layout_conflicts(rules), ElementsAre("seq_length = 1026 is not a multiple of 2 x context_parallel_size = "
                                                   "4; the nearest multiples are 1024 and 1028; with "
                                                   "context_parallel_size 1 or 3 it is valid"));
}

TEST(LayoutTest, ChecksOtherRulesWhenWorldSizeIsUnknown) {
  LayoutRules rules = good_rules();
  rules.world_size = 0, rules.sizes.num_distributed_optimizer_instances = 4;
  EXPECT_THAT(layout_conflicts(rules), IsEmpty());
  rules.sizes.context_parallel_size = 3, rules.global_batch_size = 33;
  EXPECT_THAT(layout_conflicts(rules),
              UnorderedElementsAre(HasSubstr("is not a multiple of 2 x context_parallel_size = 6"),
                                   "global_batch_size = 33 is not a multiple of micro_batch_size = 2; the nearest "
                                   "multiples are 32 and 34"));
}

TEST(LayoutTest, HeadExchangeMustDivideHeadsOfTensorParallelRank) {
  LayoutRules rules = good_rules();  // 8 heads of 4 groups on each rank
  rules.sizes = {.tensor_model_parallel_size = 2, .context_parallel_size = 8, .context_parallel_heads = 8};
  EXPECT_THAT(layout_conflicts(rules), IsEmpty()) << "two ranks get the same group";
  rules.num_attention_heads = 24, rules.num_query_groups = 12;
  EXPECT_THAT(
      layout_conflicts(rules),
      UnorderedElementsAre(HasSubstr("= 8 does not divide the attention heads of a tensor-parallel rank = 12; the "
                                     "nearest that do are 6 and 12"),
                           HasSubstr("= 8 neither divides the query groups of a tensor-parallel rank = 6")));
}

TEST(LayoutTest, ReportsSizesBelowOneFirst) {
  LayoutRules rules = good_rules();
  rules.sizes.pipeline_model_parallel_size = 0;
  EXPECT_THAT(layout_conflicts(rules), ElementsAre("pipeline_model_parallel_size = 0 must be at least 1"));
}

}  // namespace
}  // namespace mcpp
