// Layouts on which training.eval_tasks cannot score.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_cpp/config/layout.h"

namespace mcpp {
namespace {

std::vector<std::string> problems_with(std::vector<std::string> settings) {
  settings.insert(settings.end(), {"--parallel.pipeline_model_parallel_size=2", "--data.tokenizer_model=a"});
  return layout_problems(parse_config("[model]\nvocab_size = 100\nnum_layers = 4\n[training]\ntrain_iters = 10\n"
                                      "global_batch_size = 4\n",
                                      "run.toml", settings),
                         2);
}

TEST(TaskLayoutTest, TasksNeedOneStagePerPipelineRank) {
  const std::vector<std::string> interleaved{"--parallel.pipeline_schedule=interleaved",
                                             "--parallel.num_virtual_stages_per_pipeline_rank=2"};
  std::vector<std::string> scored = interleaved;
  scored.push_back("--training.eval_tasks=a.jsonl");
  EXPECT_THAT(problems_with(interleaved), testing::IsEmpty());
  EXPECT_THAT(problems_with({"--training.eval_tasks=a.jsonl"}), testing::IsEmpty());
  EXPECT_THAT(problems_with(scored), testing::ElementsAre(testing::HasSubstr(
                                         "num_virtual_stages_per_pipeline_rank = 2: training.eval_tasks needs one "
                                         "stage per pipeline rank")));
}

}  // namespace
}  // namespace mcpp
