// Former names of keys and options are accepted with one warning, and rejected next to the current name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/foreign_names.h"
#include "tests/support/errors.h"

namespace mcpp::renamed_keys_test {
namespace {

using testing::HasSubstr;

constexpr const char* kBase = "[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n";

struct RunOptions {
  std::string config;
  bool allow_lossy_comm = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "the file");
    visit("allow_lossy_comm", self.allow_lossy_comm, "a renamed option");
  }
};

struct ParsedRun {
  Config config;
  RunOptions options;
  std::string warnings;
};

ParsedRun read_run(const std::string& toml, const std::vector<std::string>& args) {
  ParsedRun run;
  const auto source = [&](const RunOptions&, const Config&) { return ConfigText{.toml = toml, .name = "run.toml"}; };
  testing::internal::CaptureStderr();
  run.config = *read_config_and_options(args, Usage{.command = "run", .summary = ""}, run.options, Log(), source);
  run.warnings = testing::internal::GetCapturedStderr();
  return run;
}

std::string error_of(const std::string& toml, const std::vector<std::string>& args) {
  return test::input_error([&] { parse_config(toml, "run.toml", args); });
}

struct RenamedKey {
  std::string former, present, value, printed;
};

std::vector<RenamedKey> renamed_keys() {
  return {{"checkpoint.accept_change", "checkpoint.allow_changed_keys", "training.seed", "[\"training.seed\"]"},
          {"checkpoint.keep_last", "checkpoint.keep_latest_k", "7", "7"},
          {"checkpoint.local_keep_last", "checkpoint.local_keep_latest_k", "7", "7"},
          {"device.gemm_choice_file", "device.gemm_tuning_file", "a.gemm", "\"a.gemm\""},
          {"fault_injection.at", "fault_injection.point", "before_files", "\"before_files\""},
          {"logging.log_progress", "logging.show_progress", "false", "false"},
          {"logging.metrics", "logging.metrics_path", "a.jsonl", "\"a.jsonl\""}};
}

/// Adds arguments that some of the keys require.
std::vector<std::string> with_required_keys(std::vector<std::string> args) {
  for (const char* needed : {"--device.device=cuda", "--fault_injection.kind=kill", "--checkpoint.save=a",
                             "--checkpoint.local_save=b", "--checkpoint.local_save_interval=1"})
    args.emplace_back(needed);
  return args;
}

TEST(RenamedKeyTest, AcceptsFormerNameOnCommandLineAndHintsOnce) {
  for (const auto& [former, present, value, printed] : renamed_keys()) {
    const ParsedRun run = read_run(kBase, with_required_keys({str("--", former, "=", value)}));
    EXPECT_THAT(print_config(run.config), HasSubstr(str("\n", present.substr(present.find('.') + 1), " = ", printed)));
    EXPECT_EQ(run.warnings, str("warning: ", former, " is now ", present, "; former names are deprecated\n"));
  }
}

TEST(RenamedKeyTest, AcceptsFormerNameInToml) {
  const std::string toml = str(kBase, "[checkpoint]\nkeep_last = 7\nsave = 'a'\n[logging]\nmetrics = 'm'\n");
  const ParsedRun run = read_run(toml, {"--other-numbers"});
  EXPECT_EQ(run.config.checkpoint.keep_latest_k, 7);
  EXPECT_EQ(run.config.logging.metrics_path, "m");
  EXPECT_TRUE(run.options.allow_lossy_comm);
  EXPECT_EQ(run.warnings,
            "warning: checkpoint.keep_last is now checkpoint.keep_latest_k, logging.metrics is now "
            "logging.metrics_path, other_numbers is now allow_lossy_comm; "
            "former names are deprecated\n");
}

TEST(RenamedKeyTest, HasNoHintForCurrentNames) {
  EXPECT_EQ(read_run(kBase, {"--checkpoint.save=a", "--checkpoint.keep_latest_k=7"}).warnings, "");
}

TEST(RenamedKeyTest, LetsCommandLineOverrideFormerNameInFile) {
  const std::string toml = str(kBase, "[checkpoint]\nsave = 'a'\nkeep_last = 7\n");
  EXPECT_EQ(
      parse_config(toml, "run.toml", std::vector<std::string>{"--checkpoint.keep_latest_k=8"}).checkpoint.keep_latest_k,
      8);
}

TEST(RenamedKeyTest, RejectsBothNamesInOneFile) {
  const std::string toml = str(kBase, "[checkpoint]\nsave = 'a'\nkeep_last = 7\nkeep_latest_k = 7\n");
  EXPECT_EQ(error_of(toml, {}),
            "run.toml:8:1: checkpoint.keep_latest_k: was already set as checkpoint.keep_last; set it once, as "
            "checkpoint.keep_latest_k");
}

TEST(RenamedKeyTest, RejectsBothNamesOnCommandLine) {
  for (const auto& [former, present, value, printed] : renamed_keys()) {
    const std::string both =
        error_of(kBase, with_required_keys({str("--", present, "=", value), str("--", former, "=", value)}));
    EXPECT_THAT(both, HasSubstr(str("--", former, "=", value, ": was already set as --", present, "=", value,
                                    "; set it once, as ", present)));
  }
}

TEST(RenamedKeyTest, ReadsConfigurationStoredByEarlierVersion) {
  Config config = parse_config(kBase, "run.toml", with_required_keys({"--checkpoint.keep_latest_k=7"}));
  const std::string present = print_config(config);
  std::string former = present;
  for (const RenamedKey& key : renamed_keys()) {
    const std::string new_name = str("\n", key.present.substr(key.present.find('.') + 1), " = ");
    const std::size_t at = former.find(new_name);
    ASSERT_NE(at, std::string::npos) << key.present;
    former.replace(at, new_name.size(), str("\n", key.former.substr(key.former.find('.') + 1), " = "));
  }
  EXPECT_NE(former, present);
  EXPECT_EQ(print_config(parse_config(former, "iter_0000001/config")), present);
}

TEST(RenamedKeyTest, NamesKeyAsGivenInProblemsWithItsValue) {
  EXPECT_EQ(error_of(kBase, {"--checkpoint.keep_last=-1"}),
            "command line: --checkpoint.keep_last=-1: must be at least 0, not -1");
}

TEST(RenamedKeyTest, SuggestsCurrentNameForFormerNameWithoutSection) {
  EXPECT_THAT(error_of(kBase, {"--log_progress=false"}), HasSubstr("did you mean --logging.show_progress?"));
}

}  // namespace
}  // namespace mcpp::renamed_keys_test
