#include "megatron_cpp/commands/commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/file.h"
#include "megatron_cpp/setup/initialize.h"
#include "tests/support/build.h"
#include "tests/support/scratch_folder.h"

namespace mcpp {
namespace {

using testing::HasSubstr;

struct Outcome {
  ExitCode code = ExitCode::Done;
  std::string out;
};

Outcome run(const std::vector<std::string>& args) {
  Log log;
  testing::internal::CaptureStdout();
  Outcome outcome;
  try {
    const auto self = make_self_communicator();
    outcome.code = run_program(args, log, {.ranks = *self});
    outcome.out = testing::internal::GetCapturedStdout();
  } catch (const Error& error) {
    testing::internal::GetCapturedStdout();
    outcome = {error.code(), error.what()};
  }
  return outcome;
}

TEST(CommandsTest, HelpNamesEveryCommand) {
  EXPECT_EQ(run({"--help"}).code, ExitCode::Done);
  EXPECT_EQ(run({}).code, ExitCode::BadInput);
  for (const Command& command : commands()) {
    EXPECT_THAT(run({"--help"}).out, HasSubstr("\n  " + std::string(command.name) + " "));
    const Outcome help = run({std::string(command.name), "--help"});
    EXPECT_EQ(help.code, ExitCode::Done) << command.name;
    EXPECT_THAT(help.out, HasSubstr("usage: megatron_cpp " + std::string(command.name)));
  }
}

TEST(CommandsTest, VersionNamesLibraries) {
  const std::string out = run({"--version"}).out;
  for (const char* name :
       {"megatron_cpp ", "\ncompiler ", "\nbuild type ", "\nMPI ", "\noneDNN ", "\nHDF5 ", "\nsentencepiece "}) {
    EXPECT_THAT(out, HasSubstr(name));
  }
  for (const char* name : {"\nCUDA ", "\ncuDNN ", "\nNCCL "})
    EXPECT_EQ(out.find(name) != out.npos, test::built_with_cuda()) << name;
}

TEST(CommandsTest, SuggestsCommandForUnknownCommand) {
  EXPECT_EQ(run({"cnfig"}).code, ExitCode::BadInput);
  EXPECT_EQ(run({"cnfig"}).out, "unknown command \"cnfig\"; did you mean config?");
  EXPECT_THAT(run({"zzzzzz"}).out, HasSubstr("unknown command \"zzzzzz\"; available are tokenizer"));
}

TEST(TokenizerCommandTest, TrainsDescribesAndConverts) {
  const test::ScratchFolder folder;
  const auto at = [&](const char* name) { return (folder / name).string(); };
  std::string words;
  for (int i = 0; i < 50; ++i) words += "to be or not to be\n";
  write_file_atomic(at("text.txt"), words);
  ASSERT_EQ(run({"tokenizer", "train", at("text.txt"), "--output=" + at("a"), "--model_type=bpe-bytes",
                 "--vocab_size=260", "--pre_tokenizer=qwen2"})
                .code,
            ExitCode::Done);
  const std::string info = run({"tokenizer", "info", at("a")}).out;
  for (const char* line : {"byte-level BPE\n", "normalizer           NFC\n", "words                qwen2\n",
                           "pieces               260\n", "ends documents       <|endoftext|> (0)\n"})
    EXPECT_THAT(info, HasSubstr(line));
  EXPECT_EQ(run({"tokenizer", "encode", "--model=" + at("a"), "--text=be<|endoftext|>", "--pieces"}).out,
            "be <|endoftext|>\n");
  EXPECT_THAT(run({"tokenizer", "convert", at("a"), at("b")}).out, HasSubstr("other files need no conversion"));
  EXPECT_THAT(run({"tokenizer", "convert", at("a"), at("b"), "--pre_tokenizer=bert"}).out,
              HasSubstr("--pre_tokenizer=bert: must be one of gpt2, llama3, qwen2, cl100k, o200k"));
}

TEST(ConfigCommandTest, PrintsResolvedConfiguration) {
  const std::string file = testing::TempDir() + "commands_test.toml";
  write_file_atomic(file, "[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n");
  const Outcome printed = run({"config", file, "--training.micro_batch_size=2"});
  EXPECT_EQ(printed.code, ExitCode::Done);
  EXPECT_THAT(printed.out, HasSubstr("\nmicro_batch_size = 2\nglobal_batch_size = 2\n"));
  EXPECT_EQ(run({"config"}).out, "command line: CONFIG: is missing: configuration file in TOML");
  EXPECT_EQ(run({"config", "/nonexistent"}).code, ExitCode::BadInput);
  EXPECT_THAT(run({"config", "--help"}).out, HasSubstr("\n[optimizer]\n"));
}

}  // namespace
}  // namespace mcpp
