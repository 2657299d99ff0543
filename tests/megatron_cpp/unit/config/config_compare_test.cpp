#include "megatron_cpp/config/config_compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/check.h"
#include "tests/support/errors.h"

namespace mcpp::config_compare_test {
namespace {

Config parse(const std::vector<std::string>& overrides) {
  return parse_config("[model]\nvocab_size = 100\n[training]\ntrain_iters = 10\n", "run.toml", overrides);
}

std::string error_of(const Config& saved, const Config& now) {
  return test::input_error([&] { check_same_run(saved, now, "runs/a/iter_7", Log()); });
}
std::string architecture_error(const std::vector<std::string>& saved, const std::vector<std::string>& now) {
  return test::input_error([&] { check_same_architecture(parse(saved), parse(now), "runs/a/iter_7", Log()); });
}

TEST(ConfigCompareTest, AllowsChangeOfKeysThatDoNotDefineRun) {
  const Config saved = parse({"--training.micro_batch_size=4"});
  const Config now =
      parse({"--training.train_iters=20", "--training.micro_batch_size=2", "--training.global_batch_size=4",
             "--training.recompute_granularity=full", "--checkpoint.save=x", "--logging.log_interval=1",
             "--device.num_threads=3", "--data.prefetch_batches=0", "--data.data_cache_path=c"});
  EXPECT_TRUE(differences(saved, now).empty());
  EXPECT_EQ(error_of(saved, now), "");
}

TEST(ConfigCompareTest, FindsImplicitChangeOfBatchSize) {
  const std::vector<Difference> found =
      differences(parse({"--training.micro_batch_size=4"}), parse({"--training.micro_batch_size=2"}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].key, "training.global_batch_size");
  EXPECT_EQ(found[0].before, "4");
  EXPECT_EQ(found[0].now, "2");
}

TEST(ConfigCompareTest, RejectsChangedKeysUnlessAllowed) {
  const Config saved = parse({});
  const std::vector<std::string> changes{"--training.seed=1", "--model.norm_epsilon=0.5", "--data.data_path=a",
                                         "--optimizer.lr=1.0"};
  EXPECT_EQ(
      error_of(saved, parse(changes)),
      "runs/a/iter_7: belongs to a different run:\n"
      "  model.norm_epsilon: 1e-05 in the checkpoint, 0.5 now\n"
      "  training.seed: 1234 in the checkpoint, 1 now\n"
      "  optimizer.lr: 3e-04 in the checkpoint, 1.0 now\n"
      "  data.data_path: [] in the checkpoint, [\"a\"] now\n"
      "Set these keys back, or accept the change with "
      "--checkpoint.allow_changed_keys=model.norm_epsilon,training.seed,optimizer.lr,data.data_path, or start a new "
      "run from the weights: --checkpoint.finetune --checkpoint.load=runs/a/iter_7, with a different "
      "--checkpoint.save");
  std::vector<std::string> accepted = changes;
  accepted.push_back("--checkpoint.allow_changed_keys=model.norm_epsilon,training.seed,optimizer.lr,data.data_path");
  EXPECT_EQ(error_of(saved, parse(accepted)), "");
}

TEST(ConfigCompareTest, SuggestsWorkingRemedyWhenTensorsWouldDiffer) {
  for (const std::string change : {"training.precision=bf16", "optimizer.optimizer=muon"}) {
    const std::string key = change.substr(0, change.find('='));
    for (const bool is_accepted : {false, true}) {
      std::vector<std::string> options{"--" + change};
      if (is_accepted) options.push_back("--checkpoint.allow_changed_keys=" + key);
      const std::string error = error_of(parse({}), parse(options));
      EXPECT_THAT(error, testing::HasSubstr(key));
      EXPECT_THAT(error, testing::HasSubstr("--checkpoint.finetune --checkpoint.load=runs/a/iter_7"));
      EXPECT_THAT(error, testing::Not(testing::HasSubstr("--checkpoint.allow_changed_keys=")));
    }
  }
  const std::string other_model = error_of(parse({}), parse({"--model.num_layers=3"}));
  EXPECT_THAT(other_model, testing::HasSubstr("train this model with a different --checkpoint.save"));
  EXPECT_THAT(other_model, testing::Not(testing::HasSubstr("finetune")));
}

TEST(ConfigCompareTest, LogsAllowedChanges) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(error_of(parse({}), parse({"--training.seed=1", "--checkpoint.allow_changed_keys=training.seed"})), "");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "accepted: training.seed: 1234 in the checkpoint, 1 now\n");
}

TEST(ConfigCompareTest, ExplicitDefaultCountsAsUnchanged) {
  EXPECT_EQ(error_of(parse({}), parse({"--model.ffn_hidden_size=3072", "--model.num_query_groups=12",
                                       "--model.kv_channels=64", "--model.max_position_embeddings=1024"})),
            "");
}

TEST(ConfigCompareTest, RejectsWeightsOfDifferentArchitecture) {
  const std::string rope = "--model.position_embedding_type=rope";
  EXPECT_EQ(architecture_error(
                {rope}, {rope, "--model.seq_length=4096", "--model.hidden_dropout=0", "--model.attention_dropout=0",
                         "--model.init_method_std=1", "--optimizer.lr=1", "--training.seed=3"}),
            "");
  EXPECT_EQ(architecture_error({}, {"--model.seq_length=512", "--model.max_position_embeddings=1024"}), "");
  for (const char* change : {"num_layers=3", "untie_embeddings_and_output_weights=true", "rotary_base=20000",
                             "norm_epsilon=1e-6", "num_attention_heads=6", "num_query_groups=2",
                             "activation_func=\"gelu_erf\"", "rotary_percent=0.5", "window_size=[63, 0]"}) {
    const std::string option = std::string("--model.") + change;
    const std::string key = option.substr(2, option.find('=') - 2);
    const std::string error = architecture_error({rope}, {rope, option});
    EXPECT_NE(error.find("runs/a/iter_7: has the weights of a different model:\n  " + key + ": "), std::string::npos)
        << error;
    EXPECT_EQ(architecture_error({rope}, {rope, option, "--checkpoint.allow_changed_keys=" + key}), "") << key;
  }
  const std::string shorter = architecture_error({}, {"--model.seq_length=512"});
  EXPECT_NE(shorter.find("model.max_position_embeddings: 1024 in the checkpoint, 512 now"), std::string::npos)
      << shorter;
}

TEST(ConfigCompareTest, WeightsMayBeUsedWithoutMultiTokenPrediction) {
  const std::string rope = "--model.position_embedding_type=rope", mtp = "--model.mtp_num_layers=2";
  EXPECT_EQ(architecture_error({rope, mtp, "--model.mtp_hybrid_layer_pattern=*-"}, {rope}), "");
  EXPECT_EQ(architecture_error({rope, mtp}, {rope, mtp, "--model.mtp_loss_scaling_factor=0.3"}), "");
  EXPECT_CONTAINS(architecture_error({rope, mtp}, {rope, "--model.mtp_num_layers=1"}), "model.mtp_num_layers: 2 in");
  EXPECT_CONTAINS(architecture_error({rope}, {rope, mtp}), "model.mtp_num_layers: 0 in the checkpoint, 2 now");
  EXPECT_CONTAINS(architecture_error({rope, mtp}, {rope, mtp, "--model.mtp_hybrid_layer_pattern=-"}),
                  "model.mtp_hybrid_layer_pattern: ");
}

TEST(ConfigCompareTest, RejectsChangedOriginalContextOfScaledRope) {
  const std::vector<std::string> yarn{"--model.position_embedding_type=rope", "--model.rope_scaling_type=yarn",
                                      "--model.rope_scaling_factor=4"};
  const auto with = [&](std::vector<std::string> warnings_of_more_samples) {
    warnings_of_more_samples.insert(warnings_of_more_samples.begin(), yarn.begin(), yarn.end());
    return warnings_of_more_samples;
  };
  // A longer context does not change the model's function, unless the scaling depends on it.
  const std::string original = "--model.rope_scaling_original_max_position_embeddings=1024";
  EXPECT_EQ(architecture_error(with({}), with({original})), "");
  EXPECT_EQ(architecture_error(with({original}), with({original, "--model.max_position_embeddings=4096"})), "");
  const std::string error = architecture_error(with({}), with({"--model.max_position_embeddings=4096"}));
  EXPECT_NE(error.find("model.rope_scaling_original_max_position_embeddings: 1024 in the checkpoint, 4096 now"),
            std::string::npos)
      << error;
  EXPECT_NE(architecture_error(with({}), {"--model.position_embedding_type=rope"}).find("model.rope_scaling_type"),
            std::string::npos);
}

TEST(ConfigCompareTest, RunDefiningKeysExist) {
  const std::vector<std::string> keys = run_defining_keys();
  for (const char* key :
       {"model.num_layers", "optimizer.lr", "training.seed", "training.global_batch_size",
        "training.step_batch_size_schedule", "training.precision", "training.fp8", "data.data_path",
        "data.train_data_path", "data.valid_data_path", "data.test_data_path", "data.split", "data.tokenizer_model"}) {
    EXPECT_NE(std::find(keys.begin(), keys.end(), key), keys.end()) << key;
  }
}

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(ScheduleWarningsTest, NamesDecayThatFollowsNewLength) {
  const Config saved = parse({});
  EXPECT_THAT(schedule_warnings(saved, saved), IsEmpty());
  const auto warnings = schedule_warnings(saved, parse({"--training.train_iters=30"}));
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("was 10 iterations and is now 30 iterations"));
  EXPECT_THAT(warnings[0],
              HasSubstr("--optimizer.lr_decay_iters=10 --checkpoint.allow_changed_keys=optimizer.lr_decay_iters"));
  EXPECT_THAT(schedule_warnings(saved, parse({"--training.train_iters=30", "--optimizer.lr_decay_iters=10"})),
              IsEmpty());
  EXPECT_THAT(schedule_warnings(saved, parse({"--training.train_iters=30", "--optimizer.lr_decay_style=constant"})),
              IsEmpty());
}

TEST(ScheduleWarningsTest, NamesWeightDecayRampThatFollowsNewLength) {
  const std::vector<std::string> ramp{"--optimizer.lr_decay_style=constant",
                                      "--optimizer.weight_decay_incr_style=linear",
                                      "--optimizer.start_weight_decay=0.1", "--optimizer.end_weight_decay=0.5"};
  std::vector<std::string> longer = ramp;
  longer.push_back("--training.train_iters=20");
  EXPECT_THAT(schedule_warnings(parse(ramp), parse(longer)),
              ElementsAre(HasSubstr("the weight decay changes over the entire training, which was 10 iterations")));
}

TEST(ScheduleWarningsTest, IgnoresBatchSizeWhenLengthIsInIterations) {
  EXPECT_THAT(schedule_warnings(parse({}), parse({"--training.global_batch_size=2"})), IsEmpty());
}

TEST(ScheduleWarningsTest, NamesInverseSquareRootWhoseRateFollowsBatchSize) {
  const std::string style = "--optimizer.lr_decay_style=inverse-square-root", batch = "--training.global_batch_size=4";
  const Config saved = parse({style});
  EXPECT_THAT(schedule_warnings(saved, saved), IsEmpty());
  EXPECT_THAT(schedule_warnings(saved, parse({style, batch})), ElementsAre(HasSubstr("training.global_batch_size")));
  const std::string warmup = "--optimizer.lr_warmup_iters=2";
  EXPECT_THAT(schedule_warnings(parse({style, warmup}), parse({style, batch, warmup})), IsEmpty());
}

TEST(CheckSameRunTest, RejectsBatchGrowthInTokensWhenSequenceLengthChanges) {
  const std::vector<std::string> by_samples{"--training.train_iters=0", "--training.train_samples=100",
                                            "--training.step_batch_size_schedule=0:2 20:4"};
  std::vector<std::string> by_tokens = by_samples;
  by_tokens.back() = "--training.step_batch_size_schedule=0:2 1K:4";
  const auto shorter = [](std::vector<std::string> settings) {
    settings.push_back("--model.seq_length=512");
    settings.push_back("--model.max_position_embeddings=1024");
    settings.push_back("--checkpoint.allow_changed_keys=model.seq_length,training.step_batch_size_schedule");
    return parse(settings);
  };
  EXPECT_EQ(error_of(parse(by_tokens), parse(by_tokens)), "");
  EXPECT_EQ(error_of(parse(by_samples), shorter(by_samples)), "");
  EXPECT_EQ(error_of(parse(by_tokens), shorter(by_samples)), "");
  EXPECT_THAT(
      error_of(parse(by_tokens), shorter(by_tokens)),
      HasSubstr("training.step_batch_size_schedule states positions in tokens, but model.seq_length was 1024 and "
                "is now 512"));
}

TEST(DataWarningsTest, NamesKeysThatChangeOrderOfSamples) {
  const Config saved = parse({});
  EXPECT_THAT(data_warnings(saved, saved, 40), IsEmpty());
  EXPECT_THAT(data_warnings(saved, parse({"--training.seed=1", "--data.split=90,10,0"}), 40),
              ElementsAre(HasSubstr("training.seed, data.split: changed, so that samples are reshuffled; sample 40")));
  EXPECT_THAT(data_warnings(saved, parse({"--optimizer.lr=1"}), 40), IsEmpty());
}

TEST(DataWarningsTest, DistinguishesSkippedFromRepeatedTextWhenSequenceLengthChanges) {
  const std::string positions = "--model.max_position_embeddings=4096";
  const Config saved = parse({positions});
  EXPECT_THAT(data_warnings(saved, parse({positions, "--model.seq_length=2048"}), 40),
              ElementsAre(HasSubstr("so that text is skipped")));
  EXPECT_THAT(data_warnings(saved, parse({positions, "--model.seq_length=512"}), 40),
              ElementsAre(HasSubstr("so that text is read again")));
}

TEST(DataWarningsTest, NamesEvaluationsThatReadDifferentSamples) {
  const Config saved = parse({"--training.eval_iters=5", "--training.global_batch_size=4"});
  const auto warnings_after = [&](const std::vector<std::string>& settings) {
    return data_warnings(saved, parse(settings), 40);
  };
  const auto warnings_of_same_samples = warnings_after({"--training.eval_iters=10", "--training.global_batch_size=2"});
  EXPECT_THAT(warnings_of_same_samples, IsEmpty());
  const auto warnings_of_more_samples = warnings_after({"--training.eval_iters=10", "--training.global_batch_size=4"});
  EXPECT_THAT(warnings_of_more_samples,
              ElementsAre(HasSubstr("an evaluation read 20 samples and now reads 40 samples")));
  EXPECT_THAT(warnings_after({"--training.eval_iters=0", "--training.global_batch_size=4"}), IsEmpty());
}

}  // namespace
}  // namespace mcpp::config_compare_test
