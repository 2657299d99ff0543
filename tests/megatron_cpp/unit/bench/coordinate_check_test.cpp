#include "megatron_cpp/bench/coordinate_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/file.h"
#include "megatron_cpp/commands/commands.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::coordinate_check_test {
namespace {

using testing::HasSubstr;

constexpr const char* kConfig = R"([model]
num_layers = 2
hidden_size = 32
ffn_hidden_size = 80
num_attention_heads = 4
num_query_groups = 2
seq_length = 16
vocab_size = 100
[training]
micro_batch_size = 4
train_iters = 1
[optimizer]
lr = 1e-2
[device]
num_threads = 1
)";

CoordinateCheck check(const std::vector<std::string>& options) {
  const auto self = make_self_communicator();
  return run_coordinate_check(parse_config(kConfig, "run.toml", options), {32, 64, 128, 256}, 4, 2, {.ranks = *self});
}

TEST(CoordinateCheckTest, FitsExponentOfPowerLaw) {
  EXPECT_NEAR(fit_exponent({64, 128, 512}, {3 * 8.0, 3 * std::sqrt(128.0), 3 * std::sqrt(512.0)}), 0.5, 1e-12);
  EXPECT_NEAR(fit_exponent({10, 30}, {5, 5}), 0, 1e-12);
}

TEST(CoordinateCheckTest, ScalesWidthsInProportion) {
  Config config = parse_config(kConfig, "run.toml", std::vector<std::string>{"--model.use_mup"});
  const ModelConfig model = config_at_width(config, 96).model;
  EXPECT_EQ(model.hidden_size, 96);
  EXPECT_EQ(model.ffn_hidden_size, PerLayer<i64>(240));
  EXPECT_EQ(model.num_attention_heads, PerLayer<i64>(12));
  EXPECT_EQ(model.num_query_groups, PerLayer<i64>(6));
  EXPECT_EQ(model.head_dim(), 8);
  EXPECT_EQ(model.width_mult(), 3);
  EXPECT_EQ(model.hidden_dropout, 0);
  EXPECT_EQ(config_at_width(config, 32).model.width_mult(), 1);
  EXPECT_THAT(
      test::input_error([&] { config_at_width(config, 36); }),
      HasSubstr("--widths: 36: model.num_attention_heads 4 x 36 / 32 is not an integer; choose multiples of 8"));
}

/// Adam changes hidden values in proportion to the width, and logits too, unless muP divides the learning rate.
TEST(CoordinateCheckTest, DistinguishesParametrizations) {
  const CoordinateCheck mup = check({"--model.use_mup"}), standard = check({});
  ASSERT_EQ(mup.rows.size(), 3U);
  for (const CoordinateRow& row : mup.rows)
    EXPECT_LE(std::abs(fit_exponent(mup.widths, row.changes)), kFlatExponent) << row.name;
  EXPECT_GT(fit_exponent(standard.widths, standard.rows.back().changes), 0.5);
  EXPECT_THAT(coordinate_table(mup), HasSubstr("\nflat: "));
  EXPECT_THAT(coordinate_table(standard), HasSubstr("logits grows"));
  // Both are the same model at the base width.
  EXPECT_EQ(mup.rows[0].name, "layer 0");
}

TEST(CoordinateCheckTest, DrawsEveryRow) {
  const CoordinateCheck made{.widths = {64, 128}, .rows = {{"layer 0", {1, 2}, {3, 0.5}}, {"logits", {1, 1}, {4, 40}}}};
  const std::string svg = coordinate_chart(made, "title");
  for (const char* part : {"<svg ", "title", "layer 0", "logits", ">64<", ">128<", "</svg>"})
    EXPECT_THAT(svg, HasSubstr(part));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_THAT(coordinate_table(made), HasSubstr("not flat: the change of layer 0 shrinks, that of logits grows"));
}

TEST(CoordinateCheckTest, CommandRejectsUnusableOptions) {
  const test::ScratchFolder folder;
  const Path config = folder.path() / "run.toml";
  write_file_atomic(config, kConfig);
  const auto refusal = [&](std::vector<std::string> more) {
    std::vector<std::string> args{"bench", "coordinate_check", config.string(), "--steps=5"};
    args.insert(args.end(), more.begin(), more.end());
    const auto self = make_self_communicator();
    Log log;
    return test::input_error([&] { run_program(args, log, {.ranks = *self}); });
  };
  EXPECT_THAT(refusal({"--widths=64"}), HasSubstr("--widths: must be at least two different widths"));
  EXPECT_THAT(refusal({"--widths=64,64"}), HasSubstr("--widths: must be at least two different widths"));
  EXPECT_THAT(refusal({"--widths=32,50"}), HasSubstr("--widths: 50: "));
  EXPECT_THAT(refusal({"--parallel.tensor_model_parallel_size=2"}), HasSubstr("runs on one rank"));
  EXPECT_THAT(refusal({"--optimizer.lr=1e30", "--widths=32,64"}), HasSubstr("is not finite at width 32"));
}

}  // namespace
}  // namespace mcpp::coordinate_check_test
