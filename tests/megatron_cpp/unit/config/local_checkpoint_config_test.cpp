#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_cpp/config/config.h"
#include "tests/support/errors.h"

namespace mcpp::local_checkpoint_config_test {
namespace {

using testing::HasSubstr;

constexpr const char* kBase = "[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n";
const std::vector<std::string> kLocal{"--checkpoint.save=a", "--checkpoint.local_save=b",
                                      "--checkpoint.local_save_interval=1"};

CheckpointConfig parse(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return parse_config(kBase, "run.toml", args).checkpoint;
}
std::string error_of(const std::vector<std::string>& args, const std::vector<std::string>& more) {
  return test::input_error([&] { parse(args, more); });
}

TEST(LocalCheckpointConfigTest, ReplicasNeedTwoLocalCheckpoints) {
  EXPECT_EQ(error_of(kLocal, {"--checkpoint.local_replicas=1"}), "");
  EXPECT_THAT(error_of(kLocal, {"--checkpoint.local_replicas=1", "--checkpoint.local_keep_latest_k=1"}),
              HasSubstr("needs checkpoint.local_keep_latest_k of at least 2"));
  EXPECT_THAT(error_of(kLocal, {"--checkpoint.local_replicas=9"}), HasSubstr("checkpoint.local_replicas"));
}

TEST(LocalCheckpointConfigTest, KeysNeedLocalFolder) {
  EXPECT_THAT(error_of({"--checkpoint.save=a"}, {"--checkpoint.local_replicas=1"}),
              HasSubstr("checkpoint.local_replicas=1: needs checkpoint.local_save"));
  EXPECT_THAT(error_of({"--checkpoint.save=a"}, {"--checkpoint.local_ranks_per_node=2"}),
              HasSubstr("checkpoint.local_ranks_per_node=2: needs checkpoint.local_save"));
}

TEST(LocalCheckpointConfigTest, EmptySaveFolderDisablesReplicas) {
  const std::string local = std::string(kBase) +
                            "[checkpoint]\nsave = \"a\"\nlocal_save = \"b\"\nlocal_save_interval = 1\n" +
                            "local_replicas = 1\nlocal_ranks_per_node = 2\n";
  const CheckpointConfig off =
      parse_config(local, "run.toml", std::vector<std::string>{"--checkpoint.save="}).checkpoint;
  EXPECT_EQ(off.local_replicas, 0);
  EXPECT_EQ(off.local_ranks_per_node, 0);
}

}  // namespace
}  // namespace mcpp::local_checkpoint_config_test
