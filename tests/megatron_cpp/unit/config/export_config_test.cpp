// Keys of the export to Hugging Face's format during training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_cpp/config/config.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using testing::HasSubstr;

const std::string kSaving = R"([model]
vocab_size = 100
[training]
global_batch_size = 4
train_iters = 10
[data]
mock_data = true
[checkpoint]
save = "a"
save_interval = 5
)";

std::string error_of_settings(std::vector<std::string> settings) {
  return test::error_of([&] { parse_config(kSaving, "run.toml", settings); });
}

TEST(ExportConfigTest, ExportsOnlySavedCheckpoints) {
  EXPECT_EQ(error_of_settings({}), "");
  EXPECT_EQ(error_of_settings({"--checkpoint.export_hf_interval=10"}), "");
  EXPECT_THAT(error_of_settings({"--checkpoint.export_hf_interval=12"}),
              HasSubstr("export_hf_interval=12: must be a multiple of checkpoint.save_interval, 5"));
  EXPECT_THAT(error_of_settings({"--checkpoint.export_hf_interval=5", "--checkpoint.save_interval=0"}),
              HasSubstr("export_hf_interval=5: must be a multiple of checkpoint.save_interval, 0"));
  EXPECT_THAT(error_of_settings({"--checkpoint.export_hf_max_shard_size=1000"}),
              HasSubstr("export_hf_max_shard_size=1000: needs checkpoint.export_hf_interval"));
}

TEST(ExportConfigTest, EmptySaveFolderDisablesExports) {
  const std::vector<std::string> settings{"--checkpoint.export_hf_interval=10", "--checkpoint.save="};
  EXPECT_EQ(parse_config(kSaving, "run.toml", settings).checkpoint.export_hf_interval, 0);
}

}  // namespace
}  // namespace mcpp
