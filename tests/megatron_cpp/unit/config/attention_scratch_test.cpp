// Scratch memory of attention on CPUs in the plan of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/number_format.h"
#include "megatron_cpp/setup/run_summary.h"

namespace mcpp {
namespace {

using testing::HasSubstr;
using testing::Not;

Config long_samples() {
  Config config;
  config.model.num_layers = 2;
  config.model.hidden_size = 128;
  config.model.num_attention_heads = 2;
  config.model.seq_length = config.model.max_position_embeddings = 8192;
  config.model.vocab_size = 100;
  config.training.micro_batch_size = config.training.global_batch_size = 1;
  config.training.train_iters = 1;
  config.device.num_threads = 3;
  return config;
}

TEST(AttentionScratchTest, IsIncludedInPlanOnCpu) {
  Config config = long_samples();
  const double three = attention_scratch_bytes(config), rows = 8192 * 64 * 4;
  EXPECT_GT(three, 3 * 10 * rows);
  EXPECT_LT(three, 3 * 10.2 * rows);
  EXPECT_THAT(describe_run(config, 1), HasSubstr("attention workspace   " + human_bytes(three)));
  config.device.num_threads = 1;
  EXPECT_EQ(attention_scratch_bytes(config), three / 3);
  config.device.device = DeviceType::Cuda;
  EXPECT_EQ(attention_scratch_bytes(config), 0);
  EXPECT_THAT(describe_run(config, 1), Not(HasSubstr("attention workspace")));
}

TEST(AttentionScratchTest, ScalesWithThreadsOfRank) {
  Config config = long_samples();
  EXPECT_EQ(attention_scratch_bytes(config, 2), attention_scratch_bytes(config)) << "the requested number";
  config.device.num_threads = 0;
  EXPECT_EQ(attention_scratch_bytes(config, 2), 2 * attention_scratch_bytes(config, 1));
  EXPECT_THAT(describe_run(config, 1, 2),
              HasSubstr("attention workspace   " + human_bytes(attention_scratch_bytes(config, 2))));
}

TEST(AttentionScratchTest, ScalesWithRowsOfRank) {
  Config config = long_samples();
  const double all = attention_scratch_bytes(config);
  config.parallel.cp = 2;
  config.parallel.cp_comm_type = CpCommType::P2p;
  EXPECT_NEAR(attention_scratch_bytes(config) / all, 0.5, 0.01);
  config.parallel.cp_comm_type = CpCommType::AllGather;
  EXPECT_NEAR(attention_scratch_bytes(config) / all, 0.75, 0.01) << "the rank has all keys";
  config.parallel.cp_comm_type = CpCommType::A2a;
  EXPECT_EQ(attention_scratch_bytes(config), all) << "the full sequence for some heads";
}

}  // namespace
}  // namespace mcpp
