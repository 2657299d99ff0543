// Files that list the datasets of a run.
#include "megatron_cpp/config/data_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/strings.h"
#include "megatron_cpp/config/config.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DataFilesTest : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    write_file_atomic(folder_ / name, text);
    return (folder_ / name).string();
  }
  static Config parse(const std::vector<std::string>& args, const std::string& more = "") {
    return parse_config("[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n" + more, "run.toml", args);
  }
  static std::string error_of(const std::vector<std::string>& args) {
    return test::input_error([&] { parse(args); });
  }

  const test::ScratchFolder folder_;
};

TEST_F(DataFilesTest, ListsMixture) {
  const std::string list = file("list.txt", "30  a_text_document\n 70\tb_text_document\n");
  const Config config = parse({"--data.data_args_path=" + list});
  EXPECT_THAT(config.data.data_path, ElementsAre("30", "a_text_document", "70", "b_text_document"));
  EXPECT_EQ(config.data.data_args_path, "") << "the printed configuration does not depend on the file";
  EXPECT_EQ(print_config(parse_config(print_config(config), "again.toml")), print_config(config));
}

TEST_F(DataFilesTest, ListsMixtureOfEachSplit) {
  const std::string splits = file("splits.json", R"({"train": ["30", "a", 70, "b"], "valid": ["c"], "test": null})");
  const Config config = parse({"--data.per_split_data_args_path=" + splits});
  EXPECT_THAT(config.data.train_data_path, ElementsAre("30", "a", "70", "b"));
  EXPECT_THAT(config.data.valid_data_path, ElementsAre("c"));
  EXPECT_THAT(config.data.test_data_path, IsEmpty());
}

TEST_F(DataFilesTest, StageReadsItsOwnFile) {
  const std::string list = file("list.txt", "1 a 2 b");
  const std::string stages =
      str("[data]\ndata_path = ['c']\n[[stage]]\ntrain_iters = 4\n[[stage]]\ntrain_iters = "
          "6\n[stage.data]\ndata_args_path = '",
          list, "'\n");
  const Config config = parse({"--checkpoint.save=a"}, stages);
  EXPECT_THAT(config.stages.at(0).data.data_path, ElementsAre("c"));
  EXPECT_THAT(config.stages.at(1).data.data_path, ElementsAre("1", "a", "2", "b"));
  const Config again = parse_config(print_config(config), "again.toml");
  EXPECT_EQ(print_config(again), print_config(config));
  EXPECT_THAT(print_config(config), HasSubstr("data_path = [\"1\", \"a\", \"2\", \"b\"]"));
}

TEST_F(DataFilesTest, ExplainsInvalidFiles) {
  EXPECT_THAT(error_of({"--data.data_args_path=/nonexistent"}), HasSubstr("--data.data_args_path=/nonexistent: "));
  EXPECT_THAT(error_of({"--data.data_args_path=" + file("empty", " \n")}), HasSubstr("is empty"));
  const std::string list = file("list.txt", "1 a 2 b");
  EXPECT_THAT(error_of({"--data.data_args_path=" + list, "--data.data_path=c"}), HasSubstr("replaces data_path"));
  EXPECT_THAT(error_of({"--data.data_args_path=" + list, "--data.per_split_data_args_path=" + list}),
              HasSubstr("cannot be combined"));
  for (const char* text :
       {"", "[]", "{\"valid\": []}", "{\"train\": \"a\"}", "{\"train\": [[]]}", "{\"train\": [\"a\"], \"tests\": []}"})
    EXPECT_THAT(error_of({"--data.per_split_data_args_path=" + file("splits.json", text)}), HasSubstr("splits.json: "))
        << text;
  const std::string splits = file("good.json", "{\"train\": [\"a\"]}");
  EXPECT_THAT(error_of({"--data.per_split_data_args_path=" + splits, "--data.train_data_path=c"}),
              HasSubstr("replaces train_data_path; remove one"));
}

}  // namespace
}  // namespace mcpp
