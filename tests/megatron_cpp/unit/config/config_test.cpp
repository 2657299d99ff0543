#include "megatron_cpp/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "base/check.h"
#include "base/strings.h"
#include "megatron_cpp/config/foreign_names.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/config/settings.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/run_summary.h"
#include "model/flops.h"
#include "plan/hardware/hardware.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using testing::HasSubstr;
using testing::Not;

/// The minimal complete configuration.
constexpr const char* kMinimal = "[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n";

Config parse(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  return parse_config(toml, "run.toml", overrides);
}

/// Returns the message of the error that parsing throws.
std::string error_of(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  return test::input_error([&] { parse(toml, overrides); });
}

std::string with_model(const std::string& line) {
  return "[training]\ntrain_iters = 10\n[model]\nvocab_size = 100\n" + line;
}

std::string with_training(const std::string& line) {
  return "[model]\nvocab_size = 100\n[training]\ntrain_samples = 1000\n" + line;
}

TEST(ConfigTest, ReadsEveryFieldType) {
  const Config c = parse(
      "[model]\nvocab_size = 1_000\nnormalization = 'RMSNorm'\nposition_embedding_type = 'rope'\nrotary_base = "
      "500000\nadd_bias_linear = false\n"
      "[training]\ntrain_iters = 1e6\n[data]\ndata_path = ['0.5', 'a', '0.5', 'b']\nsplit = '8,1,1'\n");
  EXPECT_EQ(c.model.vocab_size, 1000);
  EXPECT_EQ(c.model.normalization, Normalization::RMSNorm);
  EXPECT_EQ(c.model.rotary_base, 500000.0);
  EXPECT_FALSE(c.model.add_bias_linear);
  EXPECT_EQ(c.training.train_iters, 1000000);
  EXPECT_EQ(c.data.data_path, (std::vector<std::string>{"0.5", "a", "0.5", "b"}));
  EXPECT_EQ(c.data.split, "8,1,1");
}

TEST(ConfigTest, CommandLineOverridesFileWithFieldType) {
  const Config c =
      parse(kMinimal, {"--training.train_iters=20", "--optimizer.lr", "1e-4", "--data.split=969,30,1",
                       "--data.data_path=a,b", "--data.tokenizer_model=12", "--model.add_bias_linear=false",
                       "--checkpoint.save=\"a b\"", "--checkpoint.finetune", "--checkpoint.load=x=y",
                       "--model.normalization", "RMSNorm", "--device.num-threads=2"});
  EXPECT_EQ(c.training.train_iters, 20);
  EXPECT_EQ(c.optimizer.lr, 1e-4);
  EXPECT_EQ(c.data.split, "969,30,1");
  EXPECT_EQ(c.data.data_path, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(c.data.tokenizer_model, "12");
  EXPECT_FALSE(c.model.add_bias_linear);
  EXPECT_EQ(c.checkpoint.save, "a b");
  EXPECT_TRUE(c.checkpoint.finetune);
  EXPECT_EQ(c.checkpoint.load, "x=y");
  EXPECT_EQ(c.model.normalization, Normalization::RMSNorm);
  EXPECT_EQ(c.device.num_threads, 2);
}

TEST(ConfigTest, ReadsListsFromCommandLine) {
  EXPECT_EQ(parse(kMinimal, {"--data.data_path=[\"a,b\", 'c']"}).data.data_path,
            (std::vector<std::string>{"a,b", "c"}));
  EXPECT_TRUE(parse(std::string(kMinimal) + "[data]\ndata_path = 'a'", {"--data.data_path="}).data.data_path.empty());
  EXPECT_EQ(parse(std::string(kMinimal) + "[data]\ndata_path = 'a'").data.data_path, (std::vector<std::string>{"a"}));
  EXPECT_EQ(error_of(kMinimal, {"--data.data_path=[a"}),
            "command line: --data.data_path=[a: \"[a\" is not a TOML list; write [\"a\", \"b\"] or a,b");
}

TEST(ConfigTest, RejectsWrongTypes) {
  EXPECT_EQ(error_of(with_model("num_layers = 'abc'")),
            "run.toml:5:1: model.num_layers: must be an integer, not \"abc\"");
  EXPECT_EQ(error_of(with_model("num_layers = 2.5")), "run.toml:5:1: model.num_layers: must be an integer, not 2.5");
  EXPECT_EQ(error_of(with_model("num_layers = 1e300")),
            "run.toml:5:1: model.num_layers: must be an integer, not 1e+300");
  EXPECT_EQ(error_of(with_model("num_layers = [1]")), "run.toml:5:1: model.num_layers: must be an integer, not a list");
  EXPECT_EQ(error_of(with_model("num_layers = {a = 1}")),
            "run.toml:5:1: model.num_layers: must be an integer, not a table");
  EXPECT_EQ(error_of(with_model("num_layers = 2026-01-01")),
            "run.toml:5:1: model.num_layers: must be an integer, not a date or time");
  EXPECT_EQ(error_of(with_model("rotary_base = true")), "run.toml:5:1: model.rotary_base: must be a number, not true");
  EXPECT_EQ(error_of(with_model("add_bias_linear = 1")),
            "run.toml:5:1: model.add_bias_linear: must be true or false, not 1");
  EXPECT_EQ(error_of(with_model("[data]\nsplit = 1")), "run.toml:6:1: data.split: must be a string, not 1");
  EXPECT_EQ(error_of(with_model("[data]\ndata_path = ['a', 1]")),
            "run.toml:6:1: data.data_path: element 2 must be a string, not 1");
  EXPECT_EQ(error_of(kMinimal, {"--training.seed=abc"}),
            "command line: --training.seed=abc: must be an integer, not \"abc\"");
  EXPECT_EQ(error_of(kMinimal, {"--model.add_bias_linear=maybe"}),
            "command line: --model.add_bias_linear=maybe: must be true or false, not \"maybe\"");
  EXPECT_EQ(error_of(kMinimal, {"--training.seed=1\nvocab_size=2"}),
            "command line: --training.seed=1\nvocab_size=2: must be an integer, not \"1\\u000Avocab_size=2\"");
}

TEST(ConfigTest, RejectsOutOfRangeValuesAndBadNames) {
  EXPECT_EQ(error_of(with_model("num_layers = 0")),
            "run.toml:5:1: model.num_layers: must be at least 1 and at most 100000, not 0");
  EXPECT_EQ(error_of(with_model("hidden_dropout = 1")),
            "run.toml:5:1: model.hidden_dropout: must be at least 0 and below 1, not 1");
  EXPECT_EQ(error_of(with_model("norm_epsilon = nan")), "run.toml:5:1: model.norm_epsilon: must be finite, not nan");
  EXPECT_EQ(error_of(with_model("norm_epsilon = inf")), "run.toml:5:1: model.norm_epsilon: must be finite, not inf");
  EXPECT_EQ(error_of(with_model("normalization = 'layernorm'")),
            "run.toml:5:1: model.normalization: must be one of \"LayerNorm\", \"RMSNorm\", not \"layernorm\"");
  EXPECT_EQ(error_of(kMinimal, {"--optimizer.lr=-1"}),
            "command line: --optimizer.lr=-1: must be greater than 0, not -1");
}

TEST(ConfigTest, SqrtRecomputesInGroupsOfSqrtLayers) {
  Config config;
  config.training.recompute_granularity = RecomputeGranularity::Full;
  config.training.recompute_method = RecomputeMethod::Sqrt;
  config.model.num_layers = 32;
  EXPECT_EQ(layout_of(config, 2).recompute.num_layers, 6);
  config.parallel.pp = 2;
  EXPECT_EQ(layout_of(config, 2).recompute.num_layers, 4);
  EXPECT_EQ(layout_of(config, 2).recompute.method, Recompute::Method::Uniform);
}

TEST(ConfigTest, SuggestsNameForUnknownKey) {
  EXPECT_EQ(error_of(with_model("num_layer = 3")),
            "run.toml:5:1: model.num_layer: unknown key; did you mean model.num_layers?");
  EXPECT_EQ(error_of(with_model("[model.zzzzzz]\na = 1")), "run.toml:5:8: model.zzzzzz: unknown key");
  EXPECT_EQ(error_of(with_model("zzzzzz = 3")), "run.toml:5:1: model.zzzzzz: unknown key");
  EXPECT_EQ(error_of(with_model("lr = 3")), "run.toml:5:1: model.lr: unknown key; did you mean optimizer.lr?");
  EXPECT_EQ(error_of(with_model("[optimiser]\nlr = 1\nmin_lr = 2")),
            "run.toml:5:2: optimiser: unknown section [optimiser]; did you mean [optimizer]?");
  EXPECT_EQ(error_of(with_model("[daat]")), "run.toml:5:2: daat: unknown section [daat]; did you mean [data]?");
  EXPECT_EQ(
      error_of(with_model("[zzzzzz]")),
      "run.toml:5:2: zzzzzz: unknown section [zzzzzz]; the sections are model, training, parallel, optimizer, data, "
      "checkpoint, logging, device, fault_injection");
  EXPECT_EQ(error_of("seq_length = 3\n" + std::string(kMinimal)),
            "run.toml:1:1: seq_length: every key belongs to a section; did you mean model.seq_length?");
  EXPECT_EQ(error_of("device = 'cpu'\n" + std::string(kMinimal)),
            "run.toml:1:1: device: is a section; write its keys below a line [device]");
  EXPECT_EQ(error_of(kMinimal, {"--training.sed=3"}),
            "command line: --training.sed=3: unknown option; did you mean --training.seed?");
  EXPECT_EQ(error_of(kMinimal, {"--num_layers", "3"}),
            "command line: --num_layers: unknown option; did you mean --model.num_layers?");
  EXPECT_EQ(error_of(kMinimal, {"--modle.num_layers=3"}),
            "command line: --modle.num_layers=3: unknown option; did you mean --model.num_layers?");
}

TEST(ConfigTest, RejectsMalformedCommandLine) {
  EXPECT_EQ(error_of(kMinimal, {"--training.seed"}), "command line: --training.seed: needs a value, an integer");
  EXPECT_EQ(error_of(kMinimal, {"--training.seed", "--optimizer.lr=1"}),
            "command line: --training.seed: needs a value, an integer");
  EXPECT_EQ(error_of(kMinimal, {"abc"}), "command line: unexpected argument \"abc\"");
  EXPECT_EQ(error_of(kMinimal, {"--training.seed=1", "--training.seed", "2"}),
            "command line: --training.seed 2: was already set as --training.seed=1; set it once");
}

TEST(ConfigTest, RejectsInvalidToml) {
  EXPECT_THAT(error_of("[model]\nnum_layers = \n"), HasSubstr("run.toml:2:14: "));
  const std::string twice = error_of("[model]\nnum_layers = 1\nnum_layers = 2\n");
  EXPECT_THAT(twice, HasSubstr("run.toml:3:"));
  EXPECT_THAT(twice, HasSubstr("cannot redefine existing integer 'num_layers'"));
  EXPECT_THAT(twice, Not(HasSubstr("train_iters")));  // Rules are not checked for half a file.
  EXPECT_THAT(error_of("[model]\n\xff\xfe = 1\n"), HasSubstr("invalid utf-8"));
}

TEST(ConfigTest, ReportsAllProblemsInOrderOfText) {
  const std::string toml =
      "[training]\ntrain_iters = 10\nmicro_batch_size = 3\nglobal_batch_size = 4\n\n[model]\nvocab_size = 'x'\n"
      "  hidden_size = 0\nnum_layer = 3\n[optimizer]\nlr_decay_style = 'cos'\nmin_lr = 1\n";
  EXPECT_EQ(error_of(toml, {"--data.splt=1", "--training.seed=x"}),
            "8 problems:\n"
            "  run.toml:7:1: model.vocab_size: must be an integer, not \"x\"\n"
            "  run.toml:8:3: model.hidden_size: must be at least 1 and at most 1000000, not 0\n"
            "  run.toml:9:1: model.num_layer: unknown key; did you mean model.num_layers?\n"
            "  run.toml:11:1: optimizer.lr_decay_style: must be one of \"constant\", \"linear\", \"cosine\", "
            "\"inverse-square-root\", \"WSD\", not \"cos\"\n"
            "  command line: --data.splt=1: unknown option; did you mean --data.split?\n"
            "  command line: --training.seed=x: must be an integer, not \"x\"\n"
            "  run.toml:4:1: training.global_batch_size: 4 is not divisible by micro_batch_size 3\n"
            "  run.toml:12:1: optimizer.min_lr: 1 is above lr 0.0003");
}

TEST(ConfigTest, ConflictsNameLocationOfKey) {
  EXPECT_EQ(
      error_of(with_model("num_attention_heads = 7")),
      "run.toml:5:1: model.num_attention_heads: hidden_size 768 is not divisible by 7 heads; change one of them or "
      "set model.kv_channels");
  EXPECT_EQ(error_of(kMinimal, {"--training.micro_batch_size=4", "--training.global_batch_size=6"}),
            "command line: --training.global_batch_size=6: 6 is not divisible by micro_batch_size 4");
  EXPECT_EQ(error_of("[model]\nvocab_size = 100"),
            "run.toml: training.train_iters: is missing; set it or train_samples to a positive number");
  EXPECT_EQ(error_of("[training]\ntrain_iters = 1"),
            "run.toml: model.vocab_size: is missing; set it or data.tokenizer_model");
}

TEST(ConfigTest, RejectsConflictingTrainingKeys) {
  EXPECT_EQ(error_of(with_training("train_iters = 3")),
            "run.toml:4:1: training.train_samples: set only one of train_iters and train_samples");
  EXPECT_EQ(error_of(with_training("global_batch_size = 1001")),
            "run.toml:4:1: training.train_samples: 1000 is less than one batch of 1001");
  EXPECT_EQ(error_of(with_training("recompute_num_layers = 2")),
            "run.toml:5:1: training.recompute_num_layers: only read when recompute_granularity is \"full\"");
  EXPECT_EQ(error_of(with_training("recompute_method = 'block'")),
            "run.toml:5:1: training.recompute_method: only read when recompute_granularity is \"full\"");
  EXPECT_EQ(error_of(with_training("recompute_granularity = 'full'\nrecompute_num_layers = 13")),
            "run.toml:6:1: training.recompute_num_layers: 13 is above model.num_layers 12");
  EXPECT_EQ(
      error_of(with_training("recompute_granularity = 'full'\nrecompute_method = 'sqrt'\nrecompute_num_layers = 2")),
      "run.toml:7:1: training.recompute_num_layers: recompute_method sqrt chooses it; remove it");
  EXPECT_EQ(error_of(with_training("recompute_modules = ['mlp_act']")),
            "run.toml:5:1: training.recompute_modules: only read when recompute_granularity is \"selective\"");
  EXPECT_EQ(error_of(with_training("recompute_granularity = 'selective'\nrecompute_modules = ['mlp_act', 'x']")),
            "run.toml:6:1: training.recompute_modules: \"x\": must be one of core_attn, layernorm, mlp_act, moe_act");
}

TEST(ConfigTest, RejectsConflictingLearningRateKeys) {
  EXPECT_EQ(error_of(with_training("[optimizer]\nlr_warmup_iters = 3")),
            "run.toml:6:1: optimizer.lr_warmup_iters: training is counted in samples (training.train_samples); use "
            "lr_warmup_samples");
  EXPECT_EQ(error_of(with_model("[optimizer]\nlr_decay_samples = 30")),
            "run.toml:6:1: optimizer.lr_decay_samples: training is counted in iterations (training.train_iters); use "
            "lr_decay_iters");
  EXPECT_EQ(error_of(with_model("[optimizer]\nlr_warmup_iters = 10")),
            "run.toml:6:1: optimizer.lr_warmup_iters: 10 must be below the decay length of 10; lower it, or "
            "train longer");
  EXPECT_EQ(error_of(with_training("[optimizer]\nlr_decay_style='WSD'\nlr_wsd_decay_samples = 1001")),
            "run.toml:7:1: optimizer.lr_wsd_decay_samples: 1001 is above the decay length of 1000");
}

TEST(ConfigTest, AllowedChangesMustNameRunDefiningKeys) {
  EXPECT_EQ(error_of(kMinimal, {"--checkpoint.allow_changed_keys=training.sed"}),
            "command line: --checkpoint.allow_changed_keys=training.sed: \"training.sed\" is not a run-defining key; "
            "did you mean training.seed?");
  EXPECT_EQ(error_of(kMinimal, {"--checkpoint.allow_changed_keys=training.train_iters"}).substr(0, 12), "command line");
  parse(kMinimal, {"--checkpoint.allow_changed_keys=training.seed,model.num_layers"});
}

TEST(ConfigTest, RejectsInvalidBatchSizeSchedules) {
  EXPECT_EQ(error_of(with_training("step_batch_size_schedule = '0:4 100:6'\nmicro_batch_size = 4")),
            "run.toml:5:1: training.step_batch_size_schedule: \"100:6\": the batch size is not divisible by "
            "micro_batch_size 4");
  EXPECT_EQ(error_of(with_training("step_batch_size_schedule = '0:4'\nglobal_batch_size = 4")),
            "run.toml:6:1: training.global_batch_size: the batch size comes from step_batch_size_schedule; remove one");
  EXPECT_EQ(error_of(kMinimal, {"--training.step_batch_size_schedule=0:4"}),
            "command line: --training.step_batch_size_schedule=0:4: needs train_samples instead of train_iters");
}

TEST(ConfigTest, ErrorDoesNotRepeatLongListForEachMistake) {
  std::string steps;
  for (int i = 0; i < 1000; ++i) steps += "0:1 ";
  const std::string error =
      test::input_error([&] { parse_config("", "run.toml", {{"--training.step_batch_size_schedule=" + steps}}); });
  EXPECT_THAT(error, HasSubstr("--training.step_batch_size_schedule=0:1 0:1 "));
  EXPECT_LT(error.size(), 400'000u);
}

TEST(ConfigTest, DerivesSizes) {
  Config c = parse(kMinimal, {"--training.micro_batch_size=4"});
  EXPECT_EQ(c.training.global_batch_size, 4);
  EXPECT_EQ(c.training_end().iterations, 10);
  EXPECT_EQ(c.training_end().samples, 40);
  EXPECT_EQ(c.metrics_path(), "");
  c = parse(with_training("step_batch_size_schedule = '0:4 102400:8'"), {"--checkpoint.save=out"});
  EXPECT_EQ(c.training.global_batch_size, 0);
  EXPECT_EQ(c.batch_sizes(), (std::vector<BatchSizeStep>{{0, 4}, {102400, 8}}));
  EXPECT_EQ(c.training_end().samples, 1000);
  EXPECT_EQ(c.metrics_path(), "out/metrics.jsonl");
  c = parse(with_training("global_batch_size = 300"));
  EXPECT_EQ(c.training_end().iterations, 3);
  EXPECT_EQ(c.training_end().samples, 900);
}

TEST(TrainingEndTest, CountsRemainingSamplesWhenBatchSizeChanged) {
  // 5 iterations of 8 samples are done.
  EXPECT_EQ(parse(kMinimal, {"--training.global_batch_size=4"}).training_end(5, 40), (TrainingEnd{10, 60}));
  EXPECT_EQ(parse(with_training("global_batch_size = 4")).training_end(5, 40), (TrainingEnd{245, 1000}));
  EXPECT_EQ(parse(with_training("global_batch_size = 300")).training_end(5, 40), (TrainingEnd{8, 940}));
  EXPECT_EQ(parse(with_training("step_batch_size_schedule = '0:4 100:200'")).training_end(5, 40),
            (TrainingEnd{24, 900}));
}

TEST(TrainingEndTest, KeepsProgressBeyondEnd) {
  EXPECT_EQ(parse(kMinimal, {"--training.global_batch_size=4"}).training_end(12, 96), (TrainingEnd{10, 96}));
  EXPECT_EQ(parse(with_training("global_batch_size = 4")).training_end(300, 1200), (TrainingEnd{300, 1200}));
}

TEST(ConfigTest, PrintedConfigRoundTrips) {
  const Config c =
      parse(with_training("step_batch_size_schedule = ['0:4', '1M:8']\n[data]\ndata_path = ['0.1', "
                          "'a \"b\"\\\\\\u0001é', '0.9', \"c'd\"]\n[optimizer]\nlr = 0.1\nadam_eps = "
                          "3.3333333333333333e-9\n[device]\ncpu_isa = 'avx2'"));
  const std::string text = print_config(c);
  EXPECT_THAT(text, HasSubstr("[optimizer]\noptimizer = \"adam\"\nlr = 0.1\n"));
  const Config back = parse(text);
  EXPECT_EQ(print_config(back), text);
  EXPECT_EQ(back.data.data_path, c.data.data_path);
  EXPECT_EQ(back.optimizer.adam_eps, c.optimizer.adam_eps);
  EXPECT_EQ(back.device.cpu_isa, CpuIsa::Avx2);
}

TEST(ConfigTest, RejectsKeysWithoutEffect) {
  EXPECT_EQ(error_of(with_model("rotary_percent = 0.5")),
            "run.toml:5:1: model.rotary_percent: only read when position_embedding_type is \"rope\"");
  EXPECT_EQ(error_of(kMinimal, {"--optimizer.sgd_momentum=0"}),
            "command line: --optimizer.sgd_momentum=0: only read when optimizer is \"sgd\"");
  EXPECT_THAT(error_of(kMinimal, {"--optimizer.optimizer=sgd", "--optimizer.adam_eps=1e-6"}), HasSubstr("adam_eps"));
  EXPECT_EQ(error_of(kMinimal, {"--optimizer.optimizer=muon", "--optimizer.adam_eps=1e-6"}), "");
  EXPECT_THAT(error_of(kMinimal, {"--optimizer.optimizer=muon", "--optimizer.sgd_momentum=0.5"}),
              HasSubstr("sgd_momentum=0.5: only read when optimizer is \"sgd\""));
  EXPECT_THAT(error_of(kMinimal, {"--optimizer.optimizer=sgd", "--optimizer.muon_nesterov=false"}),
              HasSubstr("only read when optimizer is \"muon\""));
  EXPECT_EQ(error_of(kMinimal, {"--optimizer.hysteresis=1"}),
            "command line: --optimizer.hysteresis=1: only read when training.precision is \"fp16\" and "
            "optimizer.loss_scale is 0");
  EXPECT_EQ(error_of(kMinimal, {"--optimizer.hysteresis=1", "--training.precision=fp16"}), "");
  EXPECT_EQ(error_of(kMinimal, {"--optimizer.loss_scale=256"}), "");
  EXPECT_THAT(
      error_of(kMinimal, {"--optimizer.loss_scale=1", "--optimizer.loss_scale_window=10", "--training.precision=fp16"}),
      HasSubstr("loss_scale_window"));
  EXPECT_THAT(error_of(kMinimal, {"--optimizer.min_loss_scale=8", "--optimizer.initial_loss_scale=4",
                                  "--training.precision=fp16"}),
              HasSubstr("is above initial_loss_scale 4"));
  EXPECT_THAT(error_of(kMinimal, {"--data.train_data_path=a", "--data.split=1"}), HasSubstr("data.split"));
  EXPECT_THAT(error_of(kMinimal, {"--checkpoint.load=a", "--checkpoint.save=a/", "--checkpoint.finetune"}),
              HasSubstr("needs a save folder other than load"));
}

TEST(ConfigTest, HelpListsEveryKeyWithTypeRangeAndDefault) {
  const std::string help = config_help();
  Config config;
  for (const Field& field : config_fields(config)) {
    EXPECT_THAT(help, HasSubstr("\n  " + field.key.substr(field.key.find('.') + 1) + " "));
    EXPECT_FALSE(field.help.empty()) << field.key;
  }
  EXPECT_THAT(help, HasSubstr("transformer layers (integer, at least 1 and at most 100000; default 12)"));
}

TEST(ConfigTest, HelpListsKeysOfOneSection) {
  const std::string help = config_help({.section = "optimizer"});
  EXPECT_TRUE(help.starts_with("[optimizer]\n")) << help;
  EXPECT_THAT(help, HasSubstr("\n  clip_grad "));
  EXPECT_EQ(help.find("[model]"), std::string::npos);
  const std::string error = test::error_of([] { config_help({.section = "optimiser"}); });
  EXPECT_THAT(error, HasSubstr("--help optimiser: no such section; the sections are model, training, parallel, "));
}

TEST(ConfigTest, HelpListsKeysThatMatchSearch) {
  const std::string help = config_help({.search = "CLIP"});
  EXPECT_THAT(help, HasSubstr("\n  clip_grad "));
  EXPECT_EQ(help.find("hidden_size"), std::string::npos);
  EXPECT_THAT(test::error_of([] { config_help({.search = "zzz"}); }), HasSubstr("--search=zzz: no configuration key"));
}

TEST(ConfigTest, MissingFileIsBadInput) {
  EXPECT_THROW(load_config("/nonexistent/run.toml"), Error);
}

TEST(ConfigTest, ShippedConfigurationsAreValidAndHaveExpectedSize) {
  const std::vector<std::pair<std::string, double>> sizes{
      {"gpt2_124m", 124.5e6},   {"gpt2_350m", 354.9e6}, {"gpt2_774m", 774.1e6},
      {"gpt2_1558m", 1557.7e6}, {"llama_1b", 1.262e9},  {"llama_3b", 3.61e9},
      {"llama_8b", 8.03e9},     {"llama_70b", 70.55e9}, {"mixtral_8x7b", 46.7e9}};
  for (const auto& [name, parameters] : sizes) {
    const Config c = load_config(test::source_folder() / "configs" / (name + ".toml"));
    EXPECT_NEAR(static_cast<double>(count_parameters(c.model).total()), parameters, parameters * 5e-3) << name;
  }
  for (const auto& entry : std::filesystem::directory_iterator(test::source_folder() / "configs")) {
    if (entry.is_directory()) continue;  // hardware files are not configurations
    EXPECT_NO_THROW(load_config(entry.path())) << entry.path();
  }
}

/// Eight GPUs of 80 GB hold all but the largest models, whose layout must at least be valid on eight ranks.
TEST(ConfigTest, ShippedConfigurationsRunOnEightGpus) {
  const std::set<std::string> larger{"llama_70b", "llama3.1_70b", "mixtral_8x7b", "qwen3_next_80b_a3b",
                                     "kimi_linear_48b_a3b"};
  int checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_folder() / "configs")) {
    const std::string name = entry.path().stem().string();
    if (entry.is_directory() || name.starts_with("quickstart")) continue;  // quickstart files are for a laptop
    const Config c = load_config(entry.path());
    EXPECT_EQ(join(layout_problems(c, 8), "; "), "") << name;
    double peak = 0;
    for (const MemoryEstimate& rank : estimate_memory_by_stage(c, 8)) peak = std::max(peak, rank.total());
    EXPECT_EQ(peak > 0.95 * 80e9, larger.contains(name)) << name << " takes " << peak;
    ++checked;
  }
  EXPECT_GT(checked, 20);
}

/// Configurations of published weights have the same number of parameters as their publishers' files.
TEST(ConfigTest, ShippedFamiliesHavePublishedParameterCounts) {
  const std::vector<std::pair<std::string, i64>> sizes{{"llama2_7b", 6738415616},
                                                       {"llama3.1_8b", 8030261248},
                                                       {"llama3.1_70b", 70553706496},
                                                       {"llama3.2_1b", 1235814400},
                                                       {"mistral_7b", 7241732096},
                                                       {"qwen2.5_7b", 7615616512},
                                                       {"qwen3_0.6b", 596049920},
                                                       {"qwen3_8b", 8190735360},
                                                       {"gemma2_2b", 2614341888},
                                                       {"gemma2_9b", 9241705984},
                                                       {"gemma3_1b", 999885952},
                                                       {"gemma3_4b", 3880263168},
                                                       {"phi3_mini", 3821079552},
                                                       {"olmo2_7b", 7298617344},
                                                       {"pythia_160m", 162322944},
                                                       {"pythia_1.4b", 1414647808},
                                                       {"deepseek_v2_lite", 15706484224},
                                                       {"gpt_oss_20b", 20914757184},
                                                       {"smollm3_3b", 3075098624},
                                                       {"qwen3_next_80b_a3b", 79674391296},
                                                       {"olmo_hybrid_7b", 7430870688},
                                                       {"nemotron_h_8b", 8100852736},
                                                       {"nemotron_3_nano_30b_a3b", 31577937344}};
  const Path folder = test::source_folder() / "configs";
  for (const auto& [name, parameters] : sizes)
    EXPECT_EQ(count_parameters(load_config(folder / (name + ".toml")).model).total(), parameters) << name;
}

TEST(ConfigTest, EmptySaveFolderDisablesSaving) {
  const std::string saving = std::string(kMinimal) +
                             "[checkpoint]\nsave = \"a\"\nsave_interval = 5\nasync_save = true\nlocal_save = \"b\"\n"
                             "local_save_interval = 2\n";
  EXPECT_EQ(error_of(saving), "");
  const CheckpointConfig off = parse(saving, {"--checkpoint.save="}).checkpoint;
  EXPECT_EQ(off.save_interval, 0);
  EXPECT_FALSE(off.async_save);
  EXPECT_EQ(off.local_save, "");
  EXPECT_THAT(error_of(std::string(kMinimal) + "[checkpoint]\nsave_interval = 5\n"),
              HasSubstr("needs checkpoint.save"));
}

/// Deeper than the stack would allow.
TEST(ConfigTest, RejectsDeepNesting) {
  const auto repeated = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  for (const std::string& deep : {repeated("a.", 300'000) + "b = 1", repeated("\"a\" . ", 300'000) + "b = 1",
                                  "[" + repeated("a.", 300'000) + "b]", "x = " + repeated("[", 300'000),
                                  "x = " + repeated("{a = ", 300'000), "x = {" + repeated("a.", 300'000) + "b = 1}"}) {
    EXPECT_THAT(error_of(kMinimal + deep), HasSubstr("run.toml:5:")) << deep.substr(0, 20);
    EXPECT_THAT(error_of(kMinimal + deep), HasSubstr("nested deeper than 32 levels")) << deep.substr(0, 20);
  }
  EXPECT_THAT(error_of(kMinimal, {"--data.data_path=" + repeated("[", 300'000)}), HasSubstr("data.data_path"));
  // Dots and brackets in strings and comments do not count.
  const std::string dots = repeated(".[{", 100);
  EXPECT_EQ(error_of(kMinimal + ("[data]\ndata_path = [\"" + dots + "\", '" + dots + "', \"\"\"\n" + dots +
                                 "\\\"\"\"\"]  # " + dots + "\nsplit = \"9,1,0\"\n")),
            "");
}

/// All keys in the program's messages must exist, so that users find them; comments are excluded.
TEST(ConfigTest, MessagesNameKeysThatExist) {
  Config config;
  std::set<std::string> keys, sections;
  for (const Field& field : config_fields(config)) {
    keys.insert(field.key);
    sections.insert(std::string(field.section()));
  }
  Hardware hardware;  // hardware files have sections of the same names
  std::vector<Field> of_hardware;
  Hardware::sections(hardware, [&](std::string_view name, auto& section) { list_fields(section, name, of_hardware); });
  for (const Field& field : of_hardware) keys.insert(field.key);
  const std::set<std::string> file_names{"model.safetensors", "data.pkl", "optimizer.state"};  // and names in them
  const std::regex text("\"(?:[^\"\\\\]|\\\\.)*\""), mention("(^|[^a-z_A-Z0-9./>])([a-z_]+)\\.([a-z_0-9]+)");
  int mentions = 0;
  for (const char* library :
       {"base", "tensor", "comm", "parallel", "model", "optimizer", "data", "checkpoint", "plan", "megatron_cpp"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(test::source_folder() / library)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
      for (const std::string& line : split(read_text_file(entry.path()), '\n')) {
        const std::string code = line.substr(0, line.find("//"));
        if (code.starts_with("#include")) continue;
        for (std::sregex_iterator found(code.begin(), code.end(), text), end; found != end; ++found) {
          const std::string words = found->str();
          for (std::sregex_iterator word(words.begin(), words.end(), mention); word != end; ++word) {
            const std::string key = (*word)[2].str() + "." + (*word)[3].str();
            if (!sections.contains((*word)[2].str()) || file_names.contains(key)) continue;
            ++mentions;
            // "optimizer.lr_warmup_" is followed by a suffix chosen at run time.
            const auto after = keys.lower_bound(key);
            const bool exists = keys.contains(key) || !renamed_key(key).empty() ||
                                (key.ends_with('_') && after != keys.end() && after->starts_with(key));
            EXPECT_TRUE(exists) << entry.path() << ": " << key << " is not a key";
          }
        }
      }
    }
  }
  EXPECT_GT(mentions, 100);
}

}  // namespace
}  // namespace mcpp
