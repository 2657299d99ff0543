// Parameters of chunks that are assembled from single layers equal the parameters of models.
#include "model/chunk_params.h"

#include <gtest/gtest.h>

#include "model/gpt_model.h"
#include "model/meta_model.h"
#include "parallel/pp/schedule_kind.h"
#include "tests/support/tiny_model.h"

namespace mcpp::test {
namespace {

void expect_equal_model(const ModelConfig& config, const ActivationSetup& setup, const Layout& layout) {
  RankMemorySpec share{
      .stages = split_stages(layout, config.num_layers), .schedule = layout.make_schedule(layout.pp), .layout = layout};
  ChunkParams params(config);
  for (share.pipeline_rank = 0; share.pipeline_rank < layout.pp; ++share.pipeline_rank) {
    const std::vector<std::vector<ChunkParam>> all = params.get(setup, share);
    std::size_t chunk = 0;
    visit_rank_meta_model(config, setup, share, [&](GPTModel& model) {
      ASSERT_LT(chunk, all.size());
      std::size_t index = 0;
      model.visit([&](const Param& param, int unit) {
        ASSERT_LT(index, all[chunk].size());
        const auto& [assembled, assembled_unit] = all[chunk][index++];
        EXPECT_EQ(assembled.shape, param.box.shape) << param.name;
        EXPECT_EQ(assembled_unit, unit) << param.name;
        EXPECT_EQ(assembled.grid, param.placement.grid) << param.name;
        EXPECT_EQ(assembled.is_matrix, !param.matrices.empty()) << param.name;
        EXPECT_EQ(assembled.has_partial_slices, param.has_partial_slices()) << param.name;
      });
      EXPECT_EQ(index, all[chunk++].size());
    });
    EXPECT_EQ(chunk, all.size());
  }
}

TEST(ChunkParamsTest, EqualModels) {
  ModelConfig predicting = tiny_llama();
  predicting.mtp_num_layers = 1;
  ModelConfig mixture = tiny_llama();
  mixture.moe.num_experts = 4;
  mixture.moe.layer_freq.assign(static_cast<std::size_t>(mixture.num_layers), 1);
  mixture.moe.layer_freq.front() = 0;
  const Layout interleaved{.pp = 2, .schedule = ScheduleKind::Interleaved, .chunks = 2};
  for (ModelConfig config : {tiny_gpt2(), tiny_llama(), predicting, mixture, tiny_qwen3_next(), tiny_gpt_oss()}) {
    expect_equal_model(config, {}, {});
    config.num_layers = 4;
    if (config.moe.layer_freq.size() > 1) config.moe.layer_freq.assign({0, 1, 1, 1});
    expect_equal_model(config, {}, interleaved);
    expect_equal_model(config, {}, {.pp = 2, .stages = "Et*3|t" + std::string(config.mtp_num_layers > 0, 'm') + "L"});
  }
  ModelConfig deep = tiny_llama();
  deep.num_layers = 5;
  for (const Recompute::Method method : {Recompute::Method::Uniform, Recompute::Method::Block}) {
    const Recompute recompute{.granularity = RecomputeGranularity::Full, .method = method, .num_layers = 2};
    expect_equal_model(deep, {.recompute = recompute}, {});
  }
  expect_equal_model(
      mixture, {.tensor_parallel = 2, .sequence_parallel = true, .expert_parallel = 2, .expert_tensor_parallel = 1},
      {.tp = 2, .sequence_parallel = true, .ep = 2, .etp = 1});
}

}  // namespace
}  // namespace mcpp::test
