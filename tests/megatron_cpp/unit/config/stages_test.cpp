// [[stage]] tables of a configuration.
#include "megatron_cpp/config/stages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "megatron_cpp/config/config_compare.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// The other sections of a run, on lines 1 to 13.
constexpr const char* kBase =
    "[model]\nvocab_size = 100\nseq_length = 32\nposition_embedding_type = 'rope'\n"
    "[training]\nmicro_batch_size = 2\nglobal_batch_size = 4\n"
    "[optimizer]\nlr = 1e-3\nmin_lr = 1e-4\nlr_warmup_iters = 3\n"
    "[checkpoint]\nsave = 'runs/a'\n";

Config parse(const std::string& stages, const std::vector<std::string>& overrides = {}) {
  return parse_config(kBase + stages, "run.toml", overrides);
}

std::string error_of(const std::string& stages, const std::vector<std::string>& overrides = {}) {
  return test::input_error([&] { parse(stages, overrides); });
}

constexpr const char* kThree =
    "[[stage]]\nname = 'web'\ntrain_iters = 10\n"
    "[[stage]]\ntrain_samples = 33\n[stage.training]\nglobal_batch_size = 8\n[stage.optimizer]\nlr = 5e-4\n"
    "[[stage]]\nname = 'long'\ntrain_tokens = 1_024\nrepeat_data = true\n"
    "[stage.model]\nseq_length = 64\nrotary_base = 5e5\n[stage.data]\ndata_path = ['b']\n";

TEST(StageConfigTest, EachStageHasCompleteConfiguration) {
  const Config config = parse(kThree, {"--data.data_path=a", "--optimizer.min_lr=2e-4"});
  ASSERT_EQ(config.stages.size(), 3u);
  EXPECT_EQ(config.training.train_iters, 18);
  const Config &web = config.stages[0], &second = config.stages[1], &last = config.stages[2];
  EXPECT_EQ(web.stage->title(), "stage 1 of 3, \"web\"");
  EXPECT_EQ(second.stage->title(), "stage 2 of 3");
  EXPECT_EQ(second.training.global_batch_size, 8);
  EXPECT_EQ(last.training.global_batch_size, 4);
  EXPECT_EQ(last.model.seq_length, 64);
  EXPECT_EQ(last.model.rotary_base, 5e5);
  EXPECT_EQ(web.model.seq_length, 32);
  EXPECT_THAT(last.data.data_path, ElementsAre("b"));
  EXPECT_THAT(web.data.data_path, ElementsAre("a"));
  EXPECT_EQ(last.optimizer.min_lr, 2e-4) << "from the command line";
}

/// Lengths in samples and tokens are rounded down to full batches, as train_samples is.
TEST(StageConfigTest, StagesFollowOneAnother) {
  const Config config = parse(kThree);
  const Stage &a = *config.stages[0].stage, &b = *config.stages[1].stage, &c = *config.stages[2].stage;
  EXPECT_EQ(a.first_iteration, 0);
  EXPECT_EQ(a.last_iteration(), 10);
  EXPECT_EQ(b.first_iteration, 10);
  EXPECT_EQ(b.iterations, 4);
  EXPECT_EQ(c.first_iteration, 14);
  EXPECT_EQ(c.iterations, 4);
  EXPECT_EQ(b.first_sample, 40);
  EXPECT_EQ(c.first_sample, 40 + 4 * 8);
  EXPECT_EQ(c.first_token, (40 + 4 * 8) * 32);
  EXPECT_EQ(config.stages[2].training_end(), (TrainingEnd{18, 40 + 32 + 16}));
  EXPECT_EQ(config.stages[2].training_length(), (TrainingEnd{4, 16}));
  ASSERT_EQ(c.texts.size(), 3u);
  EXPECT_EQ(c.texts[1].samples, 32);
  EXPECT_EQ(c.texts[2].seq_length, 64);
  EXPECT_TRUE(c.texts[2].repeat_data);
  EXPECT_FALSE(c.texts[1].repeat_data);
  EXPECT_EQ(stage_at(config.stages, 0), 0u);
  EXPECT_EQ(stage_at(config.stages, 10), 0u) << "evaluations after the last iteration may be missing";
  EXPECT_EQ(stage_at(config.stages, 11), 1u);
  EXPECT_EQ(stage_at(config.stages, 99), 2u);
}

TEST(StageConfigTest, UsesScheduleOfRunUnlessStageSetsLearningRateKeys) {
  const Config config = parse(kThree);
  const Config &web = config.stages[0], &second = config.stages[1], &last = config.stages[2];
  EXPECT_FALSE(web.stage->has_own_schedule);
  EXPECT_EQ(lr_schedule_length(web).train_iters, 18);
  EXPECT_EQ(lr_schedule_length(last).train_iters, 18);
  EXPECT_EQ(last.optimizer.lr_warmup_iters, 3);
  EXPECT_TRUE(second.stage->has_own_schedule);
  EXPECT_EQ(lr_schedule_length(second).train_iters, 4);
  EXPECT_EQ(second.optimizer.lr, 5e-4);
  EXPECT_EQ(second.optimizer.min_lr, 1e-4) << "inherited";
  EXPECT_EQ(second.optimizer.lr_warmup_iters, 0) << "the warm-up of the run is over";
}

/// min_lr of the run has no effect with a constant rate, which is not an error in the stage.
TEST(StageConfigTest, ResetsKeysOfRunThatHaveNoEffectInStage) {
  const Config config = parse("[[stage]]\ntrain_iters = 9\n[stage.optimizer]\nlr_decay_style = 'constant'\n");
  EXPECT_EQ(config.stages[0].optimizer.min_lr, 0);
  EXPECT_THAT(error_of("[[stage]]\ntrain_iters = 9\n[stage.optimizer]\nlr_decay_style = 'constant'\nmin_lr = 1e-5"),
              HasSubstr("run.toml:18:1: stage.optimizer.min_lr: only read when lr_decay_style is not"));
}

TEST(StageConfigTest, PrintedConfigurationReadsBackEqual) {
  const Config config = parse(kThree);
  const std::string text = print_config(config);
  const Config again = parse_config(text, "again.toml");
  EXPECT_EQ(print_config(again), text);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(print_config(again.stages[i]), print_config(config.stages[i]));
    EXPECT_EQ(again.stages[i].stage->first_token, config.stages[i].stage->first_token);
    // A checkpoint stores the configuration of its stage, which is complete without the others.
    const Config stored = parse_stored_config(print_config(config.stages[i]), "stored.toml");
    EXPECT_EQ(print_config(stored), print_config(config.stages[i]));
    EXPECT_TRUE(differences(stored, config.stages[i]).empty());
  }
  EXPECT_THAT(text, HasSubstr("[[stage]]\ntrain_samples = 33\n\n[stage.training]\nglobal_batch_size = 8\n"));
}

TEST(StageConfigTest, ReportsAllProblemsOfAllStagesWithLocations) {
  const std::string error = error_of(
      "[[stage]]\nname = 'a'\ntrain_iters = 'x'\n"                                                // line 14
      "[[stage]]\nname = 'b'\ntrain_iter = 5\n[stage.model]\nseq_lenght = 5\nhidden_size = 64\n"  // line 17
      "[[stage]]\ntrain_tokens = 100\n[stage.logging]\nlog_interval = 1\n"                        // line 23
      "[[stage]]\nname = 'a'\ntrain_iters = 1\ntrain_samples = 8\n[stage.training]\nmicro_batch_size = 3\n"
      "[[stage]]\n");
  EXPECT_THAT(error, HasSubstr("run.toml:16:1: stage.train_iters: must be an integer, not \"x\""));
  EXPECT_THAT(error, HasSubstr("run.toml:19:1: stage.train_iter: every key belongs to a section; did you mean "
                               "train_iters?"));
  EXPECT_THAT(error, HasSubstr("run.toml:21:1: stage.model.seq_lenght: unknown key; did you mean model.seq_length?"));
  EXPECT_THAT(error, HasSubstr("run.toml:22:1: stage.model.hidden_size: cannot differ between stages; set it in "
                               "[model]. The keys of [stage.model] are seq_length, max_position_embeddings"));
  EXPECT_THAT(error, HasSubstr("run.toml:24:1: stage.train_tokens: 100 is less than one batch of 128 tokens"));
  EXPECT_THAT(error, HasSubstr("run.toml:26:1: stage.logging.log_interval: cannot differ between stages; set it in "
                               "[logging]. A stage has no section [stage.logging]"));
  EXPECT_THAT(error, HasSubstr("run.toml:28:1: stage.name: \"a\" is also the name of an earlier stage"));
  EXPECT_THAT(error, HasSubstr("run.toml:30:1: stage.train_samples: set only one of"));
  EXPECT_THAT(
      error,
      HasSubstr("run.toml:27:1: stage \"a\": training.global_batch_size: 4 is not divisible by micro_batch_size 3"));
  EXPECT_THAT(error, HasSubstr("run.toml:33:1: stage \"5\": train_iters: is missing; set the length of the stage"));
}

TEST(StageConfigTest, RejectsContradictionsWithRun) {
  const std::string one = "[[stage]]\ntrain_iters = 9\n", two = one + one;
  EXPECT_THAT(error_of(one, {"--training.train_iters=10"}),
              HasSubstr("--training.train_iters=10: the lengths of the stages add up to 9 iterations; remove it"));
  EXPECT_EQ(parse(one, {"--training.train_iters=9"}).training.train_iters, 9);
  EXPECT_THAT(error_of(one, {"--training.train_samples=10"}), HasSubstr("training.train_samples=10: the lengths"));
  EXPECT_THAT(error_of(one, {"--training.step_batch_size_schedule=0:4", "--training.global_batch_size=0"}),
              HasSubstr("cannot be combined with stages"));
  EXPECT_THAT(error_of(two, {"--checkpoint.save="}), HasSubstr("checkpoint.save="));
  EXPECT_EQ(parse(one, {"--checkpoint.save="}).stages.size(), 1u);
  EXPECT_THAT(error_of("[stage]\ntrain_iters = 9\n"), HasSubstr("run.toml:14:1: stage: is a list of tables; write"));
  EXPECT_THAT(error_of(one, {"--optimizer.lr_warmup_samples=3", "--optimizer.lr_warmup_iters=0"}),
              HasSubstr("training is counted in iterations"));
  EXPECT_THAT(error_of("[[stage]]\ntrain_iters = 3\n[stage.optimizer]\nlr_warmup_iters = 3\n"),
              HasSubstr("run.toml:17:1: stage.optimizer.lr_warmup_iters: 3 must be below the decay length of 3"));
  EXPECT_THAT(error_of("[[stage]]\ntrain_iters = 3\n[stage.parallel]\npower_sgd_rank = 4\n"),
              HasSubstr("run.toml:17:1: stage.parallel.power_sgd_rank: cannot differ between stages"));
}

TEST(StageConfigTest, LearnedPositionsMustCoverAllStages) {
  const std::string longer = "[[stage]]\ntrain_iters = 3\n[[stage]]\ntrain_iters = 3\n[stage.model]\nseq_length = 64\n";
  const std::vector<std::string> learned{"--model.position_embedding_type=learned_absolute"};
  EXPECT_THAT(
      error_of(longer, learned),
      HasSubstr("run.toml:19:1: stage.model.seq_length: learned position embeddings would change from 32 to 64"));
  EXPECT_EQ(parse(longer, {learned[0], "--model.max_position_embeddings=64"}).stages[1].model.seq_length, 64);
}

TEST(StageConfigTest, TableOfStagesListsLengths) {
  const std::string text = describe_stages(parse(kThree));
  EXPECT_THAT(text, HasSubstr("stages: 3\n"));
  EXPECT_THAT(text, HasSubstr("  web    1 to 10     40       32         1.3K"));
  EXPECT_THAT(text, HasSubstr("15 to 18"));
  EXPECT_EQ(describe_stages(parse_config(kBase, "run.toml", std::vector<std::string>{"--training.train_iters=4"})), "");
}

TEST(StageConfigTest, HelpListsKeysOfStages) {
  const std::string help = config_help({.section = "stage"});
  EXPECT_THAT(help, HasSubstr("train_tokens"));
  EXPECT_THAT(help, HasSubstr("[stage.parallel]  tensor_model_parallel_size"));
  EXPECT_THAT(help, Not(HasSubstr("power_sgd")));
  EXPECT_THAT(config_help(), HasSubstr("[[stage]]"));
}

}  // namespace
}  // namespace mcpp
