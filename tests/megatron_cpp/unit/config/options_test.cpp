#include <gtest/gtest.h>

#include "base/check.h"
#include "megatron_cpp/config/arguments.h"
#include "megatron_cpp/config/config.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

enum class Color { Red, Green };

}  // namespace

template <>
struct EnumNames<Color> {
  static constexpr std::array<std::string_view, 2> value{"red", "green"};
};

namespace {

struct PaintOptions {
  std::string target;
  std::vector<std::string> input;
  Color color = Color::Red;
  i64 layers = 1;
  double thickness = 0.5;
  bool dry_run = false;
  std::vector<i64> sizes;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("target", self.target, "what to paint");
    visit("input", self.input, "files of paint");
    visit("color", self.color, "its color");
    visit("layers", self.layers, "how often", between(1, 9));
    visit("thickness", self.thickness, "of a layer", greater_than(0));
    visit("dry_run", self.dry_run, "only say what would be done");
    visit("sizes", self.sizes, "of the brushes", at_least(1));
  }
};

Usage usage() {
  return {
      .command = "megatron_cpp paint", .summary = "Paints.", .positional = {"target", "input"}, .required = {"target"}};
}

PaintOptions read(const std::vector<std::string>& args) {
  PaintOptions options;
  EXPECT_TRUE(read_options(args, usage(), options, Log()));
  return options;
}

std::string error_of(const std::vector<std::string>& args) {
  return test::input_error([&] { read(args); });
}

TEST(OptionsTest, AcceptsAllForms) {
  const PaintOptions o = read({"wall", "--color", "green", "a", "--layers=3", "--dry-run", "b", "--thickness", "1",
                               "--sizes=1,2,3", "--", "--c"});
  EXPECT_EQ(o.target, "wall");
  EXPECT_EQ(o.input, (std::vector<std::string>{"a", "b", "--c"}));
  EXPECT_EQ(o.color, Color::Green);
  EXPECT_EQ(o.layers, 3);
  EXPECT_EQ(o.thickness, 1.0);
  EXPECT_TRUE(o.dry_run);
  EXPECT_EQ(o.sizes, (std::vector<i64>{1, 2, 3}));
}

TEST(OptionsTest, AcceptsBoolsAndPositionalsByName) {
  EXPECT_FALSE(read({"--dry_run", "false", "wall"}).dry_run);
  EXPECT_TRUE(read({"--dry_run", "wall"}).dry_run);
  EXPECT_TRUE(read({"--dry_run=true", "wall"}).dry_run);
  const PaintOptions o = read({"--target=wall", "--input=a,b"});
  EXPECT_EQ(o.target, "wall");
  EXPECT_EQ(o.input, (std::vector<std::string>{"a", "b"}));
}

TEST(OptionsTest, ReadsNegativeNumbersAsValues) {
  EXPECT_EQ(error_of({"wall", "--layers", "-5"}),
            "command line: --layers -5: must be at least 1 and at most 9, not -5");
}

TEST(OptionsTest, ReportsAllMistakesTogether) {
  EXPECT_EQ(error_of({"--colour=red", "--layers=x", "--thickness", "--sizes=1,0", "-v"}),
            "6 problems:\n"
            "  command line: --colour=red: unknown option; did you mean --color?\n"
            "  command line: --layers=x: must be an integer, not \"x\"\n"
            "  command line: --thickness: needs a value, a number\n"
            "  command line: --sizes=1,0: element 2 must be at least 1, not 0\n"
            "  command line: -v: unknown option\n"
            "  command line: TARGET: is missing: what to paint");
}

TEST(OptionsTest, HelpListsFields) {
  PaintOptions options;
  testing::internal::CaptureStdout();
  EXPECT_FALSE(read_options(std::vector<std::string>{"--help", "--bad"}, usage(), options, Log()));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), options_help<PaintOptions>(usage()) + "\n");
  EXPECT_EQ(options_help<PaintOptions>(usage()),
            "usage: megatron_cpp paint TARGET [INPUT...] [--key=value ...]\n\nPaints.\n"
            "\n  TARGET       what to paint (string; required)"
            "\n  INPUT        files of paint (list of strings; default [])"
            "\n  --color      its color (one of \"red\", \"green\"; default \"red\")"
            "\n  --layers     how often (integer, at least 1 and at most 9; default 1)"
            "\n  --thickness  of a layer (number, greater than 0; default 0.5)"
            "\n  --dry_run    only say what would be done (true or false; default false)"
            "\n  --sizes      of the brushes (list of integers, at least 1; default [])\n");
}

TEST(OptionsTest, ReadsFilterOfHelp) {
  const auto filter = [](const std::vector<std::string>& args) {
    EXPECT_TRUE(is_help_request(args));
    const HelpFilter found = help_filter(args);
    return str(found.section, "|", found.search);
  };
  EXPECT_EQ(filter({"a.toml", "--help"}), "|");
  EXPECT_EQ(filter({"--help", "a.toml"}), "|") << "a path is not a section";
  EXPECT_EQ(filter({"--help", "optimizer"}), "optimizer|");
  EXPECT_EQ(filter({"--help=optimizer", "--search=clip"}), "optimizer|clip");
  EXPECT_EQ(filter({"--search=clip"}), "|clip");
  EXPECT_EQ(filter({"a.toml", "--search", "clip"}), "|clip");
  EXPECT_FALSE(is_help_request(std::vector<std::string>{"--", "--search=clip"}));
}

struct RunOptions {
  std::string config;
  bool dry_run = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("config", self.config, "the file");
    visit("dry_run", self.dry_run, "only check");
  }
};

std::optional<Config> read_run(const std::vector<std::string>& args, RunOptions& options) {
  const Usage run{.command = "run", .summary = "", .positional = {"config"}, .required = {}};
  return read_config_and_options(args, run, options, Log());
}

TEST(ConfigAndOptionsTest, ReadsBothFromOneCommandLine) {
  const std::string file = testing::TempDir() + "options_test.toml";
  write_file_atomic(file, "[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\nseed = 5\n");
  RunOptions options;
  const std::optional<Config> config =
      read_run({"--training.seed=6", file, "--dry-run", "--model.num_layers", "2"}, options);
  ASSERT_TRUE(config);
  EXPECT_EQ(options.config, file);
  EXPECT_TRUE(options.dry_run);
  EXPECT_EQ(config->training.seed, 6);
  EXPECT_EQ(config->model.num_layers, 2);
  EXPECT_EQ(config->model.vocab_size, 100);
}

TEST(ConfigAndOptionsTest, ReadsCommandLineWithoutFile) {
  RunOptions options;
  const std::optional<Config> config = read_run({"--training.train_iters=3", "--model.vocab_size=4"}, options);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->training.train_iters, 3);
}

TEST(ConfigAndOptionsTest, ReadsTextFromGivenSource) {
  RunOptions options;
  const auto source = [](const RunOptions& given, const Config& config) {
    EXPECT_TRUE(given.dry_run);
    EXPECT_EQ(config.checkpoint.load, "runs/a");
    return ConfigText{.toml = "[model]\nvocab_size = 7\n[training]\ntrain_iters = 8\n", .name = "runs/a/config.toml"};
  };
  const std::vector<std::string> args{"--checkpoint.load=runs/a", "--training.train_iters=9", "--dry_run"};
  const std::optional<Config> config =
      read_config_and_options(args, Usage{.command = "run", .summary = ""}, options, Log(), source);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->model.vocab_size, 7);
  EXPECT_EQ(config->training.train_iters, 9);
  EXPECT_EQ(config->checkpoint.load, "runs/a");
}

TEST(ConfigAndOptionsTest, ReportsMistakesInFileAndArgumentsTogether) {
  const std::string file = testing::TempDir() + "options_test_bad.toml";
  write_file_atomic(file, "[model]\nvocab_size = 100\n[training]\ntrain_iter = 10\n");
  RunOptions options;
  try {
    read_run({file, "--dry_rum"}, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), "2 problems:\n  " + file +
                                ":4:1: training.train_iter: unknown key; did you mean training.train_iters?\n"
                                "  command line: --dry_rum: unknown option; did you mean --dry_run?");
  }
}

}  // namespace
}  // namespace mcpp
