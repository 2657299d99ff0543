// Estimated memory of a rank by module.
#include "model/module_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/layer_memory.h"

namespace mcpp {
namespace {

ModelConfig four_layers() {
  ModelConfig config;
  config.num_layers = 4;
  config.hidden_size = 64;
  config.num_attention_heads = 4;
  config.seq_length = 64;
  config.vocab_size = 512;
  return config;
}

MemoryByModule modules_of(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share) {
  return memory_by_module(config, setup, {}, share);
}

std::vector<std::string> names(const MemoryByModule& modules) {
  std::vector<std::string> list;
  for (const auto& [name, memory] : modules) list.push_back(name);
  return list;
}

TEST(ModuleMemoryTest, AddsUpToMemoryOfRank) {
  const ModelConfig config = four_layers();
  const ActivationSetup setup{.dtype = DType::BF16, .micro_batch_size = 2};
  RankMemorySpec share = single_rank_spec(config);
  const auto elements = static_cast<double>(rank_parameters(config, setup, share).dense.front().all);
  for (const int stage : {0, 1, 2, 3}) {
    share.layout.zero_stage = stage, share.layout.dp = 4;
    ModuleMemory sum;
    for (const auto& [name, m] : modules_of(config, setup, share))
      sum.params += m.params, sum.grads += m.grads, sum.optimizer_state += m.optimizer_state;
    EXPECT_DOUBLE_EQ(sum.params, 2 * elements / (stage >= 3 ? 4 : 1)) << stage;
    EXPECT_DOUBLE_EQ(sum.grads, 4 * elements / (stage >= 2 ? 4 : 1)) << stage;
    EXPECT_DOUBLE_EQ(sum.optimizer_state, 12 * elements / (stage >= 1 ? 4 : 1))
        << stage;  // including the master weights
  }
}

TEST(ModuleMemoryTest, CountsActivationsInModuleThatSavesThem) {
  const ModelConfig config = four_layers();
  ActivationSetup setup{.dtype = DType::F32, .micro_batch_size = 2};
  const RankMemorySpec share = single_rank_spec(config);
  const auto result = static_cast<double>(residual_bytes(config, setup));
  MemoryByModule modules = modules_of(config, setup, share);
  EXPECT_THAT(names(modules), testing::ElementsAre("decoder.layers.0", "decoder.layers.1", "decoder.layers.2",
                                                   "decoder.layers.3", "embedding", "output_layer"));
  EXPECT_EQ(modules["embedding"].activations, result);
  EXPECT_EQ(modules["decoder.layers.2"].activations, LayerSizes(config, setup).layer(2).saved);
  EXPECT_EQ(modules["output_layer"].activations,
            static_cast<double>(LayerSizes(config, setup).output({}).saved) - result);

  setup.recompute = {.granularity = Recompute::Granularity::Full, .num_layers = 2};  // groups save only their input
  modules = modules_of(config, setup, share);
  EXPECT_EQ(modules["decoder.layers.0"].activations, result);
  EXPECT_EQ(modules["decoder.layers.1"].activations, 0);
  EXPECT_EQ(modules["decoder.layers.2"].activations, result);

  setup.offload = OffloadTier::Host;
  EXPECT_EQ(modules_of(config, setup, share)["decoder.layers.2"].activations, 0);
}

/// The stage of multi-token prediction counts its result, which is the input of the output's stage.
TEST(ModuleMemoryTest, AddsUpToSavedActivationsWhenPredictionHasItsOwnStage) {
  ModelConfig config = four_layers();
  config.position_embedding_type = PositionEmbedding::Rope;
  config.untie_embeddings_and_output_weights = true;
  config.mtp_num_layers = 2;
  const ActivationSetup setup{.dtype = DType::F32, .micro_batch_size = 2};
  RankMemorySpec share{.stages = split_stages({.pp = 3, .stages = "Et*4|mm|L"}, 4), .schedule = one_f_one_b(3, 3)};
  double sum = 0, saved = 0;
  for (share.pipeline_rank = 0; share.pipeline_rank < 3; ++share.pipeline_rank) {
    for (const auto& [name, memory] : modules_of(config, setup, share)) sum += memory.activations;
    saved += static_cast<double>(stage_activations(config, setup, share.contents(0)).saved);
  }
  EXPECT_EQ(sum, saved);
  share.pipeline_rank = 1;
  const MemoryByModule modules = modules_of(config, setup, share);
  EXPECT_THAT(names(modules), testing::ElementsAre("embedding", "output_layer"));
  EXPECT_GT(modules.at("embedding").params, 0) << "a copy";
}

TEST(ModuleMemoryTest, ContainsOnlyStagesOfRank) {
  const ModelConfig config = four_layers();
  RankMemorySpec share{.stages = split_stages({.pp = 2}, 4), .schedule = one_f_one_b(2, 2), .pipeline_rank = 1};
  const MemoryByModule modules = modules_of(config, {}, share);
  // Includes a copy of the embeddings to which the output is tied.
  EXPECT_THAT(names(modules),
              testing::ElementsAre("decoder.layers.2", "decoder.layers.3", "embedding", "output_layer"));
  EXPECT_GT(modules.at("embedding").params, 0);
  EXPECT_EQ(modules.at("embedding").activations, 0);
  EXPECT_EQ(module_of("decoder.layers.12.mlp.fc1.weight"), "decoder.layers.12");
  EXPECT_EQ(module_of("decoder.final_layernorm.weight"), "output_layer");
}

}  // namespace
}  // namespace mcpp
