// Parameter groups in the configuration: tables of optimizer.param_group, and their check against the model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megatron_cpp/config/config.h"
#include "megatron_cpp/config/config_compare.h"
#include "megatron_cpp/setup/param_group_check.h"
#include "tests/support/errors.h"

namespace mcpp::param_group_config_test {
namespace {

using testing::HasSubstr;

constexpr const char* kBase =
    "[model]\nnum_layers = 12\nvocab_size = 100\n[training]\ntrain_iters = 10\n[optimizer]\nlr = 1e-3\n";

Config parse(const std::string& tables, const std::vector<std::string>& options = {}) {
  return parse_config(kBase + tables, "run.toml", options);
}
std::string error_of(const std::string& tables, const std::vector<std::string>& options = {}) {
  return test::input_error([&] { check_param_groups(parse(tables, options)); });
}
std::string table(const std::string& keys) {
  return "[[optimizer.param_group]]\n" + keys + "\n";
}

TEST(ParamGroupConfigTest, ReadsTablesInTheirOrder) {
  const Config c = parse(table("match = \"embedding.*\"\nlr_mult = 0.1\nwd_mult = 0") +
                         table("adam_beta2 = 0.9\nadam_eps = 1\nmatch = [\"*.bias\", \"*norm*\"]"));
  const std::vector<ParamGroupConfig> expected{
      {.match = OneOrList<std::string>("embedding.*"), .lr_mult = 0.1, .wd_mult = 0},
      {.match = OneOrList(std::vector<std::string>{"*.bias", "*norm*"}), .adam_beta2 = 0.9, .adam_eps = 1}};
  EXPECT_EQ(c.optimizer.param_group, expected);
  check_param_groups(c);
}

TEST(ParamGroupConfigTest, PrintsWhatItReads) {
  const Config c = parse(table("match = \"embedding.*\"\nlr_mult = 0.1\nwd_mult = 0") +
                         table("match = [\"a\\\"\", \"b\"]\nadam_beta1 = 0"));
  const std::string printed = print_config(c);
  EXPECT_THAT(printed, HasSubstr(R"(param_group = [{match = "embedding.*", lr_mult = 0.1, wd_mult = 0.0}, )"
                                 R"({match = ["a\"", "b"], adam_beta1 = 0.0}])"));
  EXPECT_EQ(parse_config(printed, "printed.toml", {}).optimizer.param_group, c.optimizer.param_group);
  // A setting that equals the key it would inherit is still a setting.
  EXPECT_THAT(print_config(parse(table("match = \"*\"\nwd_mult = 1\nadam_beta1 = 0.9"))),
              HasSubstr(R"(param_group = [{match = "*", wd_mult = 1.0, adam_beta1 = 0.9}])"));
  EXPECT_THAT(print_config(parse("")), HasSubstr("param_group = []\n"));
}

TEST(ParamGroupConfigTest, CommandLineReplacesTables) {
  const Config c = parse(table("match = \"embedding.*\"\nlr_mult = 0.1"),
                         {R"(--optimizer.param_group=[{match = "*.bias", lr_mult = 2}])"});
  ASSERT_EQ(c.optimizer.param_group.size(), 1U);
  EXPECT_EQ(c.optimizer.param_group[0].match, OneOrList<std::string>("*.bias"));
  EXPECT_TRUE(parse(table("match = \"x\""), {"--optimizer.param_group="}).optimizer.param_group.empty());
}

TEST(ParamGroupConfigTest, RejectsInvalidTables) {
  EXPECT_THAT(error_of(table("match = \"*\"\nlr_mul = 2")),
              HasSubstr("optimizer.param_group: lr_mul: unknown key; did you mean lr_mult?"));
  EXPECT_THAT(error_of(table("match = \"*\"") + table("match = \"*\"\nlr_mult = -1")),
              HasSubstr("optimizer.param_group: element 2 lr_mult: must be at least 0, not -1"));
  EXPECT_THAT(error_of(table("match = \"*\"\nadam_beta1 = 1.0")),
              HasSubstr("adam_beta1: must be at least 0 and below 1"));
  // Unset keys are left out, not negative.
  EXPECT_THAT(error_of(table("match = \"*\"\nadam_beta1 = -0.5")),
              HasSubstr("optimizer.param_group: adam_beta1: must be at least 0 and below 1, not -0.5"));
  EXPECT_THAT(error_of(table("match = \"*\"\nadam_beta2 = -1")), HasSubstr("adam_beta2: must be at least 0"));
  EXPECT_THAT(error_of(table("match = \"*\"\nwd_mult = -1")), HasSubstr("wd_mult: must be at least 0, not -1"));
  EXPECT_THAT(error_of(table("match = \"*\"\nadam_eps = 0")), HasSubstr("adam_eps: must be greater than 0, not 0"));
  EXPECT_THAT(error_of(table("match = 3")), HasSubstr("match: must be"));
  EXPECT_THAT(error_of(table("lr_mult = 2")), HasSubstr("table 1: match: is missing"));
  EXPECT_THAT(error_of(table("match = []")), HasSubstr("match: must have a value"));
  EXPECT_THAT(error_of(table("match = {a = 1}")),
              HasSubstr("match: must be a string or a list of strings, not a table"));
  EXPECT_THAT(error_of("[optimizer.param_group]\nmatch = \"*\"\n"),
              HasSubstr("must be a list of tables, each below a line [[section.key]], not a table"));
  EXPECT_THAT(error_of("", {"--optimizer.param_group=embedding"}), HasSubstr("must be a table, not \"embedding\""));
  EXPECT_THAT(error_of(table("match = \"*\"\nadam_eps = 1"), {"--optimizer.optimizer=sgd"}),
              HasSubstr("adam_beta1, adam_beta2, adam_eps: only read when optimizer is"));
}

TEST(ParamGroupConfigTest, RejectsPatternsWithoutEffectOnModel) {
  EXPECT_EQ(
      error_of(table("match = \"decoder.layers.3.mlp.linear_fc.weight\"")),
      "optimizer.param_group: table 1: match: no tensor matches \"decoder.layers.3.mlp.linear_fc.weight\"; did you "
      "mean decoder.layers.*.mlp.linear_fc1.weight?");
  EXPECT_THAT(error_of(table("match = \"lm_head*\"")),
              HasSubstr("no tensor matches \"lm_head*\"; the model has decoder.final_layernorm.bias, "));
  // The output layer is tied to the embedding.
  EXPECT_THAT(error_of(table("match = \"output_layer.weight\"")), HasSubstr("table 1: match: no tensor matches"));
  EXPECT_EQ(error_of(table("match = \"output_layer.weight\""), {"--model.untie_embeddings_and_output_weights"}), "");
  EXPECT_THAT(error_of(table("match = \"*\"") + table("match = \"*.bias\"\nlr_mult = 2")),
              HasSubstr("table 2: match: the 73 tensors that match \"*.bias\" match an earlier table"));
  const std::string qkv = table("match = \"*linear_qkv.weight\"\nadam_beta2 = 0.9");
  EXPECT_EQ(error_of(qkv), "");
  EXPECT_THAT(error_of(qkv, {"--optimizer.optimizer=muon"}),
              HasSubstr("optimizer \"muon\" does not update these tensors with adam"));
}

TEST(ParamGroupConfigTest, DescribesMembers) {
  EXPECT_EQ(describe_param_groups(parse("")), "");
  EXPECT_EQ(describe_param_groups(parse(table("match = \"embedding.position*\"\nlr_mult = 0.5\nwd_mult = 0") +
                                        table("match = \"embedding.*\"\nadam_eps = 1e-3"))),
            "parameter groups:\n"
            "  embedding.position*: 1 tensor, 786.4K parameters, learning rate x 0.5, weight decay x 0\n"
            "  embedding.*: 1 tensor, 98.3K parameters, learning rate x 1, adam_eps 0.001\n");
}

TEST(ParamGroupConfigTest, ChangeBetweenStartsIsReported) {
  const Config saved = parse(table("match = \"embedding.*\"\nlr_mult = 0.1"));
  const Config now = parse(table("match = \"embedding.*\"\nlr_mult = 0.2"));
  const std::vector<Difference> found = differences(saved, now);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].key, "optimizer.param_group");
  EXPECT_EQ(found[0].before, "[{match = \"embedding.*\", lr_mult = 0.1}]");
  EXPECT_THAT(test::input_error([&] { check_same_run(saved, now, "runs/a/iter_7", Log()); }),
              HasSubstr("--checkpoint.allow_changed_keys=optimizer.param_group"));
  Config allowed = now;
  allowed.checkpoint.allow_changed_keys = {"optimizer.param_group"};
  check_same_run(saved, allowed, "runs/a/iter_7", Log());
}

TEST(ParamGroupConfigTest, NamesTablesForDecoupledLearningRate) {
  EXPECT_THAT(error_of("decoupled_lr = 1e-4\n"), HasSubstr("write [[optimizer.param_group]] with match = "));
}

}  // namespace
}  // namespace mcpp::param_group_config_test
