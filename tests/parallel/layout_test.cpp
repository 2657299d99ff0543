#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/layout_rules.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

struct Rules {
  ModelSizes model;
  Layout layout;
  i64 world_size = 16, global_batch_size = 32;

  std::vector<std::string> conflicts() const { return layout_conflicts(model, layout, world_size, global_batch_size); }
};

Rules valid_rules() {
  return {.model = {.num_layers = 24,
                    .num_attention_heads = 16,
                    .num_query_groups = 8,
                    .ffn_hidden_size = 4096,
                    .padded_vocab_size = 50304,
                    .seq_length = 1024},
          .layout = {.tp = 2, .pp = 4, .micro_batch_size = 2}};
}

TEST(LayoutTest, HasNoConflictsWhenValid) {
  EXPECT_THAT(valid_rules().conflicts(), IsEmpty());
}

TEST(LayoutTest, ReportsAllConflictsWithNearestValidValues) {
  Rules rules = valid_rules();
  rules.layout.tp = 3;
  rules.model.num_layers = 22;
  rules.global_batch_size = 33;
  EXPECT_THAT(
      rules.conflicts(),
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
  Rules rules = valid_rules();
  rules.model.num_layers = 22;
  rules.layout.first_layers = 4;
  EXPECT_THAT(rules.conflicts(), IsEmpty());
  rules.layout.stages = "Et|L";
  EXPECT_THAT(rules.conflicts(), testing::Contains(HasSubstr("it has 1 layers (t), but num_layers = 22")));
}

TEST(LayoutTest, MultiTokenPredictionInItsOwnStageNeedsUntiedAndReachableEmbeddings) {
  Rules rules = valid_rules();
  rules.model.num_layers = 6, rules.model.mtp_num_layers = 2;
  rules.layout.stages = "Ettt|ttt|mm|L";
  EXPECT_THAT(rules.conflicts(), IsEmpty());
  rules.model.mtp_num_layers = 1;
  EXPECT_THAT(rules.conflicts(), ElementsAre(HasSubstr("it has 2 layers of multi-token prediction (m), but "
                                                       "mtp_num_layers = 1; write one m for each before L")));
  rules.model.mtp_num_layers = 0;
  EXPECT_THAT(rules.conflicts(), ElementsAre(HasSubstr("mtp_num_layers = 0; remove m (evaluation and generation")));
  rules.model.mtp_num_layers = 2;
  rules.model.ties_embeddings = true;
  EXPECT_THAT(rules.conflicts(),
              ElementsAre("pipeline_model_parallel_layout: m (multi-token prediction) in a stage without L needs "
                          "untie_embeddings_and_output_weights = true, because otherwise three stages would use one "
                          "matrix; write m in the stage of L"));
  rules.layout.stages = "Ettt|ttt||mmL";
  EXPECT_THAT(rules.conflicts(), IsEmpty());
  rules.model.ties_embeddings = false;
  rules.layout = {.tp = 2, .pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2, .stages = "Ettt|ttt|mm|L"};
  rules.layout.micro_batch_size = 2;
  for (const int zero : {0, 1, 2, 3}) {
    rules.layout.zero_stage = zero;
    if (zero < 2)
      EXPECT_THAT(rules.conflicts(), IsEmpty());
    else
      EXPECT_THAT(rules.conflicts(), ElementsAre(HasSubstr("shards the word embeddings of the first stage (E)")));
  }
  rules.layout.chunks = 1, rules.layout.schedule = ScheduleKind::OneFOneB;
  rules.layout.stages = "E t*6 mm|L";  // the same stage
  EXPECT_THAT(rules.conflicts(), IsEmpty());
}

TEST(LayoutTest, OptimizerInstancesMustDivideDataParallelRanks) {
  Rules rules = valid_rules();
  rules.world_size = 32;
  rules.layout.zero_stage = 1, rules.layout.instances = 3;
  EXPECT_THAT(
      rules.conflicts(),
      ElementsAre("num_distributed_optimizer_instances = 3 does not divide the number of data-parallel ranks = 4; "
                  "the nearest that do are 2 and 4"));
}

TEST(LayoutTest, HpzPartitionMustDivideRanksThatShareWeights) {
  Rules rules = valid_rules();
  rules.layout = {.zero_stage = 3, .instances = 2, .node_ranks = 4};
  rules.world_size = 16, rules.global_batch_size = 0;
  EXPECT_THAT(rules.conflicts(), IsEmpty());
  rules.layout.node_ranks = 3;
  EXPECT_THAT(rules.conflicts(),
              ElementsAre("zero_hpz_partition_size = 3 does not divide the number of ranks that share the weights = 8; "
                          "the nearest that do are 2 and 4"));
  rules.layout.node_ranks = 8;
  EXPECT_THAT(rules.conflicts(),
              ElementsAre(HasSubstr("= 8 must be smaller than the number of ranks that share the weights")));
  rules.world_size = 0;
  EXPECT_THAT(rules.conflicts(), IsEmpty());
}

TEST(LayoutTest, RanksMayShareQueryGroups) {
  Rules rules = valid_rules();
  rules.layout = {.tp = 8};
  for (const i64 groups : {1, 2, 4, 8, 16}) {
    rules.model.num_query_groups = groups;
    EXPECT_THAT(rules.conflicts(), IsEmpty()) << groups;
  }
  rules.model.num_attention_heads = 24;
  rules.model.num_query_groups = 3;
  EXPECT_THAT(
      rules.conflicts(),
      ElementsAre("tensor_model_parallel_size = 8 neither divides num_query_groups = 3 nor is a multiple of it; "
                  "the nearest that do are 6 and 9"));
}

TEST(LayoutTest, RejectsInvalidSequenceAndExpertSizes) {
  Rules rules = valid_rules();
  rules.layout = {.tp = 4, .cp = 2, .ep = 2};
  rules.model.seq_length = 1026;
  rules.layout.sequence_parallel = true;
  EXPECT_THAT(rules.conflicts(),
              UnorderedElementsAre(HasSubstr("x context_parallel_size = 8; the nearest multiples are 1024 and 1032"),
                                   HasSubstr("needs a model with experts")));
  rules.layout = {.tp = 3, .cp = 2, .sequence_parallel = true};
  rules.world_size = 6, rules.model.num_attention_heads = rules.model.num_query_groups = 3,
  rules.model.ffn_hidden_size = 96;
  rules.model.padded_vocab_size = 387, rules.model.seq_length = 20;
  EXPECT_THAT(rules.conflicts(), ElementsAre(HasSubstr("= 12; the nearest multiples are 12 and 24")))
      << "one that satisfies all rules";
  rules.layout.sequence_parallel = false;
  rules.model.seq_length = 1026;
  EXPECT_THAT(rules.conflicts(), ElementsAre("seq_length = 1026 is not a multiple of 2 x context_parallel_size = "
                                             "4; the nearest multiples are 1024 and 1028; with "
                                             "context_parallel_size 1 or 3 it is valid"));
}

TEST(LayoutTest, RejectsTensorParallelOverlapOfOneRank) {
  Rules rules = valid_rules();
  rules.layout = {.tp = 2, .tp_comm_overlap = true};
  rules.world_size = 2;
  EXPECT_THAT(rules.conflicts(), IsEmpty());
  EXPECT_THAT(rules.layout.describe(), HasSubstr("tp 2 overlapped, "));
  rules.layout.tp = 1;
  EXPECT_THAT(rules.conflicts(), ElementsAre(HasSubstr("tp_comm_overlap = true has no effect with one "
                                                       "tensor-parallel rank")));
}

TEST(LayoutTest, RejectsDispatchNodesWhenNotApplicable) {
  Rules rules = valid_rules();
  rules.layout = {.dispatcher = TokenDispatcherType::Hierarchical, .dispatch_node_ranks = 2};
  rules.world_size = 2;
  EXPECT_THAT(rules.conflicts(), UnorderedElementsAre(HasSubstr("moe_token_dispatcher_type needs a model with experts"),
                                                      HasSubstr("moe_dispatch_node_ranks needs a model with experts")));
  rules.model.num_experts = 8, rules.model.moe_ffn_hidden_size = 64;
  rules.layout.ep = 2;
  EXPECT_THAT(rules.conflicts(), IsEmpty());
  EXPECT_THAT(rules.layout.describe(), HasSubstr("ep 2 hierarchical of 2 ranks per node, "));
  rules.layout.dispatcher = TokenDispatcherType::AllGather;
  EXPECT_THAT(rules.conflicts(),
              ElementsAre(HasSubstr("moe_dispatch_node_ranks = 2 has an effect only with moe_token_dispatcher_type = "
                                    "\"hierarchical\"")));
}

TEST(LayoutTest, RejectsExpertOverlapWhenNotApplicable) {
  Rules rules = valid_rules();
  rules.layout = {.ep = 2, .overlap_moe_expert_parallel_comm = true};
  rules.world_size = 2;
  EXPECT_THAT(rules.conflicts(),
              UnorderedElementsAre(HasSubstr("expert_model_parallel_size = 2 needs a model with experts"),
                                   HasSubstr("overlap_moe_expert_parallel_comm = true needs a model with experts")));
  rules.model.num_experts = 8, rules.model.moe_ffn_hidden_size = 64;
  EXPECT_THAT(rules.conflicts(), IsEmpty());
  rules.layout.ep = 1;
  EXPECT_THAT(rules.conflicts(), ElementsAre(HasSubstr("no tokens are exchanged")));
  rules.layout.ep = 2;
  for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::ZbH1}) {
    rules.layout.schedule = kind;
    EXPECT_THAT(rules.conflicts(),
                ElementsAre(HasSubstr("use pipeline_schedule 1f1b, interleaved, zb-v or dualpipe-v")));
  }
  rules.layout.schedule = ScheduleKind::OneFOneB, rules.layout.zero_stage = 3;
  EXPECT_THAT(rules.conflicts(), ElementsAre(HasSubstr("use zero_stage 0, 1 or 2")));
}

TEST(LayoutTest, RejectsInvalidSizesWhenWorldSizeIsUnknown) {
  Rules rules = valid_rules();
  rules.world_size = 0, rules.layout.zero_stage = 1, rules.layout.instances = 4;
  EXPECT_THAT(rules.conflicts(), IsEmpty());
  rules.layout.cp = 3, rules.global_batch_size = 33;
  EXPECT_THAT(rules.conflicts(),
              UnorderedElementsAre(HasSubstr("is not a multiple of 2 x context_parallel_size = 6"),
                                   "global_batch_size = 33 is not a multiple of micro_batch_size = 2; the nearest "
                                   "multiples are 32 and 34"));
}

TEST(LayoutTest, HeadExchangeMustDivideHeadsOfTensorParallelRank) {
  Rules rules = valid_rules();  // 8 heads of 4 groups on each rank
  rules.layout = {.tp = 2, .cp = 8, .cp_comm_type = CpCommType::A2a};
  EXPECT_THAT(rules.conflicts(), IsEmpty()) << "two ranks get the same group";
  rules.model.num_attention_heads = 24, rules.model.num_query_groups = 12;
  EXPECT_THAT(
      rules.conflicts(),
      UnorderedElementsAre(HasSubstr("= 8 does not divide the attention heads of a tensor-parallel rank = 12; the "
                                     "nearest that do are 6 and 12"),
                           HasSubstr("= 8 neither divides the query groups of a tensor-parallel rank = 6")));
}

TEST(LayoutTest, ReportsSizesBelowOneFirst) {
  Rules rules = valid_rules();
  rules.layout.pp = 0;
  EXPECT_THAT(rules.conflicts(), ElementsAre("pipeline_model_parallel_size = 0 must be at least 1"));
}

}  // namespace
}  // namespace mcpp
