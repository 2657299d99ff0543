// Runs with stages: a mixture of two texts, another mixture with its own learning rate, and a longer context with YaRN.
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <map>
#include <numbers>
#include <random>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp::stages_test {
namespace {

constexpr i64 kFirst = 7, kSecond = 6, kThird = 8, kAll = kFirst + kSecond + kThird;

class StagesTest : public EndToEnd {
 protected:
  static void SetUpTestSuite() {
    EndToEnd::SetUpTestSuite();
    const std::string text = read_text_file(test::source_folder() / "data/tinyshakespeare.txt");
    write_file_atomic(root() / "more.txt", text.substr(70'000, 40'000));
    const Outcome outcome =
        run({"preprocess", str("--input=", (root() / "more.txt").string()),
             str("--output_prefix=", root().string(), "/more"),
             str("--tokenizer_model=", (root() / "tokenizer.model").string()), "--text_document=paragraph"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    write_file_atomic(root() / "run.toml", with_stages(stages()));
  }

  /// Returns the configuration of the fixture with these stages.
  static std::string with_stages(const std::string& stages) {
    std::string text = configuration();
    const std::string length = "train_iters = 12\n", seq_length = "seq_length = 32\n";
    text.replace(text.find(length), length.size(), "");
    text.replace(text.find(seq_length), seq_length.size(),
                 seq_length + "position_embedding_type = \"rope\"\nhidden_dropout = 0.1\n");
    return text + stages;
  }

  static std::string mixture(const char* train, const char* more) {
    return str("[stage.data]\ndata_path = [\"", train, "\", \"", dataset(), "\", \"", more, "\", \"", root().string(),
               "/more_text_document\"]\n");
  }

  static std::string stages(const std::string& third = "") {
    return str("[[stage]]\nname = \"web\"\ntrain_iters = ", kFirst, "\n", mixture("0.8", "0.2"),
               "[[stage]]\nname = \"mix\"\ntrain_samples = ", 4 * kSecond + 3, "\n", mixture("0.3", "0.7"),
               "[stage.training]\nglobal_batch_size = 4\n[stage.optimizer]\nlr = 5e-3\nlr_warmup_iters = 2\n",
               "[[stage]]\nname = \"long\"\ntrain_tokens = ", kThird * 8 * 64, "\n", mixture("0.5", "0.5"),
               "reset_attention_mask = true\n[stage.model]\nseq_length = 64\nrope_scaling_type = \"yarn\"\n",
               "rope_scaling_factor = 2\nrope_scaling_original_max_position_embeddings = 32\n[stage.training]\n",
               "micro_batch_size = 2\n", third);
  }

  /// Returns the name of a configuration file with `stages`.
  std::string file(const std::string& name, const std::string& stages) const {
    write_file_atomic(folder_ / name, with_stages(stages));
    return at(name);
  }
  Strings pretrain_with(const std::string& file, const std::string& save, const Strings& more = {}) const {
    Strings args{"pretrain", file, str("--checkpoint.save=", at(save))};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  std::string refusal(const Strings& args) const {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out << outcome.err;
    return outcome.err;
  }
};

/// Returns the learning rate after `done` of `length` iterations: linear warm-up, then cosine decay to 1e-4.
double expected_lr(double lr, i64 warmup, i64 length, i64 done) {
  const double n = static_cast<double>(done), w = static_cast<double>(warmup), all = static_cast<double>(length);
  if (warmup > 0 && n <= w) return lr * n / w;
  return 1e-4 + 0.5 * (1 + std::cos(std::numbers::pi * (n - w) / (all - w))) * (lr - 1e-4);
}

TEST_F(StagesTest, EachStageUsesItsSettings) {
  const std::string out = run_ok(pretrain("run"));
  EXPECT_CONTAINS(out, "stage 1 of 3, \"web\": iterations 1 to 7, 8 samples of 32 tokens each");
  EXPECT_CONTAINS(out, "stage 2 of 3, \"mix\": iterations 8 to 13, 4 samples of 32 tokens each");
  EXPECT_CONTAINS(out, "stage 3 of 3, \"long\": iterations 14 to 21, 8 samples of 64 tokens each");
  EXPECT_CONTAINS(out, "ended at iteration 21 of 21");
  EXPECT_EQ(out.find("ended at iteration 7"), std::string::npos) << "launch.sh would take the run for complete";
  i64 consumed = 0;
  const auto steps = records("run", "train");
  ASSERT_EQ(std::ssize(steps), kAll);
  for (i64 i = 0; i < kAll; ++i) {
    const nlohmann::json& step = steps[static_cast<std::size_t>(i)];
    const bool is_second = i >= kFirst && i < kFirst + kSecond;
    consumed += is_second ? 4 : 8;
    EXPECT_EQ(step["iteration"], i + 1);
    EXPECT_EQ(step["global_batch_size"], is_second ? 4 : 8);
    EXPECT_EQ(step["consumed_samples"], consumed);
    const double lr = is_second ? expected_lr(5e-3, 2, kSecond, i - kFirst) : expected_lr(1e-2, 3, kAll, i);
    EXPECT_NEAR(step["learning_rate"].get<double>(), lr, 1e-12) << i;
  }
  const auto events = records("run", [](const nlohmann::json& line) { return line.value("event", "") == "stage"; });
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2]["iteration"], kFirst + kSecond + 1);
  const auto starts = records("run", "run");
  ASSERT_EQ(starts.size(), 3u);
  EXPECT_EQ(starts[1]["stage"], "mix");
  std::map<i64, i64> evaluated;  // tokens by iteration
  for (const nlohmann::json& line : records("run", "validation")) evaluated[line["iteration"]] = line["tokens"];
  EXPECT_EQ(evaluated, (std::map<i64, i64>{{5, 2 * 8 * 32},
                                           {7, 2 * 8 * 32},
                                           {10, 2 * 4 * 32},
                                           {13, 2 * 4 * 32},
                                           {15, 2 * 8 * 64},
                                           {20, 2 * 8 * 64},
                                           {21, 2 * 8 * 64}}));
  EXPECT_EQ(records("run", "test").size(), 1u);
  EXPECT_CONTAINS(run_ok({"checkpoint", "show", at("run")}), str(kFirst * 8 * 32 + kSecond * 4 * 32 + kThird * 8 * 64));
}

constexpr int kKills = 30;
constexpr std::array kKillPoints{"step",          "before_files",  "after_files", "before_manifest",
                                 "before_rename", "before_latest", "before_prune"};

/// Returns the arguments that kill `rank` at a random point of an iteration or of its save. Points of a save that only
/// rank 0 reaches are drawn only for rank 0.
std::vector<std::string> random_kill(std::mt19937& random, i64 iteration, unsigned rank) {
  const std::size_t points = rank == 0 ? kKillPoints.size() : 3;
  return {"--fault_injection.kind=kill", "--fault_injection.iterations=0",
          str("--fault_injection.iteration=", iteration), str("--fault_injection.rank=", rank),
          str("--fault_injection.point=", kKillPoints[random() % points])};
}

/// Half of the kills are at the end of a stage or at the first step of the next one.
TEST_F(StagesTest, IsBitwiseIdenticalWhenKilledThirtyTimes) {
  const Strings keys{"--checkpoint.save_interval=3", "--checkpoint.keep_latest_k=2"};
  train("whole", keys);
  std::mt19937 random(7);
  for (int kills = 0, round = 0; kills < kKills; ++round) {
    ASSERT_LT(round, kKills);
    const std::string save = str("killed", round);
    for (i64 iteration = 1 + static_cast<i64>(random() % 4); iteration <= kAll;
         iteration += 1 + static_cast<i64>(random() % 5)) {
      i64 at = iteration;
      if (random() % 2 == 0) at = (iteration <= kFirst ? kFirst : kFirst + kSecond) + static_cast<i64>(random() % 2);
      Strings args = keys;
      for (const std::string& word : random_kill(random, at, 0)) args.push_back(word);
      kills += run(pretrain(save, args)).code == -SIGKILL;
    }
    train(save, keys);
    expect_same_checkpoint("whole", save);
    EXPECT_EQ(losses(save, kAll), losses("whole", kAll)) << save;
    EXPECT_EQ(records(save, "validation").size(), records("whole", "validation").size()) << save;
    EXPECT_EQ(records(save, [](const nlohmann::json& line) { return line.value("event", "") == "stage"; }).size(), 3u);
  }
}

/// Every start has a random layout, on one or two ranks.
TEST_F(StagesTest, LosesNothingWhenKilledThirtyTimesOnRandomLayouts) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "needs mpirun";
  const std::vector<Strings> layouts{{},
                                     {"--parallel.tensor_model_parallel_size=2"},
                                     {"--parallel.tensor_model_parallel_size=2", "--parallel.sequence_parallel"},
                                     {"--parallel.pipeline_model_parallel_size=2"},
                                     {"--parallel.context_parallel_size=2"},
                                     {"--parallel.zero_stage=1", "--training.micro_batch_size=2"},
                                     {"--parallel.zero_stage=3", "--training.micro_batch_size=2"}};
  const Strings keys{"--checkpoint.save_interval=1", "--checkpoint.keep_latest_k=3"};
  train("whole", keys);
  const std::vector<double> expected = losses("whole", kAll);
  std::mt19937 random(11);
  const auto start = [&](const std::string& save, i64 kill_iteration) {
    const std::size_t layout = random() % layouts.size();
    const unsigned ranks = layout == 0 ? 1 : 2;
    Strings args = pretrain(save, keys);
    args.insert(args.end(), layouts[layout].begin(), layouts[layout].end());
    if (kill_iteration > 0)
      for (const std::string& word : random_kill(random, kill_iteration, static_cast<unsigned>(random()) % ranks))
        args.push_back(word);
    return ranks == 1 ? run(args) : run_on(2, args);
  };
  for (int kills = 0, round = 0; kills < kKills; ++round) {
    ASSERT_LT(round, kKills);
    const std::string save = str("killed", round);
    for (bool is_killed = true; is_killed && kills < kKills;) {
      const i64 next = 1 + std::ssize(records(save, "train")) + static_cast<i64>(random() % 3);
      is_killed = start(save, next).code != 0;
      kills += is_killed;
    }
    const Outcome outcome = start(save, 0);
    ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    const std::vector<double> found = losses(save, kAll);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << save << " " << i;
  }
}

TEST_F(StagesTest, IsBitwiseIdenticalAfterStopAtAnyIteration) {
  train("whole");
  for (const i64 interval : {i64{4}, kFirst, kFirst + kSecond}) {
    const std::string save = str("parts", interval);
    Strings args{str("--training.exit_interval=", interval)};
    run_ok(pretrain(save, args));
    EXPECT_EQ(std::ssize(records(save, "train")), interval) << "a stop at the end of a stage begins no other stage";
    while (std::ssize(records(save, "train")) / interval < kAll / interval) run_ok(pretrain(save, args));
    train(save);
    expect_same_checkpoint("whole", save);
    EXPECT_EQ(losses(save, kAll), losses("whole", kAll));
  }
}

TEST_F(StagesTest, NewestCheckpointOfEarlierStageReplacesDamagedOne) {
  const Strings keys{"--checkpoint.save_interval=3", "--checkpoint.async_save"};
  train("whole", keys);
  train("run", plus(keys, "--training.exit_interval=9"));
  for (const char* name : {"iter_0000009", "iter_0000007"})
    write_file_atomic(folder_ / "run" / name / "shard_00000-of-00001.h5", "damaged");
  const Outcome outcome = run(pretrain("run", keys));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "iter_0000006");
  expect_same_checkpoint("whole", "run");
}

TEST_F(StagesTest, LayoutsTrainSameModel) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "needs mpirun";
  train("one");
  const std::string own = file("own.toml", stages("[stage.parallel]\ncontext_parallel_size = 2\n"));
  const auto expect_close = [&](const std::string& save) {
    const std::vector<double> expected = losses("one", kAll), found = losses(save, kAll);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-5) << save << " " << i;
  };
  const auto train_on_two = [&](const Strings& args) {
    const Outcome outcome = run_on(2, args);
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  };
  train_on_two(pretrain("tp", {"--parallel.tensor_model_parallel_size=2"}));
  expect_close("tp");
  train_on_two(pretrain_with(own, "own", {"--parallel.zero_stage=1", "--training.micro_batch_size=2"}));
  expect_close("own");
  // A run may change its layout at any time.
  train_on_two(pretrain_with(own, "changed", {"--training.exit_interval=9", "--training.micro_batch_size=2"}));
  run_ok(pretrain("changed", {"--training.exit_interval=15"}));
  train_on_two(pretrain("changed", {"--parallel.pipeline_model_parallel_size=2"}));
  expect_close("changed");
}

TEST_F(StagesTest, RejectsChangedStages) {
  train("run", {"--training.exit_interval=9"});
  std::string shorter = stages(), moved = stages(), batch = stages(), extended = stages(), mix = stages();
  const auto replace = [](std::string& text, const std::string& what, const std::string& with) {
    ASSERT_NE(text.find(what), std::string::npos) << what;
    text.replace(text.find(what), what.size(), with);
  };
  replace(moved, "train_iters = 7", "train_iters = 8");
  EXPECT_CONTAINS(refusal(pretrain_with(file("moved.toml", moved), "run")),
                  "in stage 2, \"mix\", which began after 7 iterations and 56 samples, and now begins after 8 and 64");
  replace(moved, "train_iters = 8", "train_iters = 12");
  EXPECT_CONTAINS(refusal(pretrain_with(file("moved.toml", moved), "run")),
                  "this iteration now belongs to stage 1 of 3");
  replace(shorter, "train_samples = 27", "train_samples = 4");
  replace(shorter, "lr_warmup_iters = 2", "lr_warmup_iters = 0");
  EXPECT_CONTAINS(refusal(pretrain_with(file("shorter.toml", shorter), "run")),
                  "this iteration now belongs to stage 3");
  replace(batch, "global_batch_size = 4", "global_batch_size = 8");
  EXPECT_CONTAINS(refusal(pretrain_with(file("batch.toml", batch), "run",
                                        {"--checkpoint.allow_changed_keys=training.global_batch_size"})),
                  "training.global_batch_size: 4 in the checkpoint, 8 now, but it cannot change within stage 2 of 3");
  replace(mix, "\"0.8\"", "\"0.6\"");
  EXPECT_CONTAINS(refusal(pretrain_with(file("mix.toml", mix), "run")), "stage 2 began to read its datasets at tokens");
  EXPECT_CONTAINS(refusal(pretrain("run", {"--optimizer.lr_wsd_decay_style=cosine"})), "lr_wsd_decay_style");
  std::string rate = stages();
  replace(rate, "lr = 5e-3", "lr = 4e-3");
  EXPECT_CONTAINS(refusal(pretrain_with(file("rate.toml", rate), "run")), "optimizer.lr: 0.005 in the checkpoint");
  run_ok(pretrain_with(file("rate.toml", rate), "run", {"--checkpoint.allow_changed_keys=optimizer.lr", "--dry_run"}));

  write_file_atomic(folder_ / "plain.toml", configuration());
  EXPECT_CONTAINS(refusal(pretrain_with(at("plain.toml"), "run", {"--model.position_embedding_type=rope"})),
                  "was saved in stage 2, \"mix\" of a run with stages");
  run_ok(
      pretrain_with(at("plain.toml"), "plain", {"--model.position_embedding_type=rope", "--training.exit_interval=2"}));
  EXPECT_CONTAINS(refusal(pretrain("plain")), "belongs to a run without stages");

  // Later stages may change, and more may follow.
  replace(extended, "train_tokens = 4096", "train_tokens = 2048");
  extended += str("[[stage]]\ntrain_iters = 2\n", mixture("0.5", "0.5"));
  const std::string out = run_ok(pretrain_with(file("extended.toml", extended), "run"));
  EXPECT_CONTAINS(out, "ended at iteration 19 of 19");
  EXPECT_CONTAINS(run_ok(pretrain_with(at("extended.toml"), "run")), "all 19 iterations are done; set the length of");
}

TEST_F(StagesTest, FindsProblemsOfLaterStagesBeforeStart) {
  std::string missing = stages();
  const std::size_t last = missing.rfind("more_text_document");
  missing.replace(last, 4, "none");
  EXPECT_CONTAINS(refusal(pretrain_with(file("missing.toml", missing), "run")), "none_text_document");
  const std::string heavy = stages("[stage.parallel]\nzero_stage = 0\n") +
                            "[[stage]]\ntrain_iters = 1\n[stage.model]\nseq_length = 10000000\n";
  const Outcome outcome = run(pretrain_with(file("heavy.toml", heavy), "run"));
  EXPECT_EQ(outcome.code, 12) << outcome.err;
  EXPECT_CONTAINS(outcome.err, "not enough memory for stage 4 of 4");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run" / "metrics.jsonl"));
}

TEST_F(StagesTest, DryRunAndDataShowDescribeStages) {
  const std::string out = run_ok(pretrain("run", {"--dry_run"}));
  for (const char* part : {"stages: 3", "8 to 13", "stage 3 of 3, \"long\"", "0.005 to 0.0001"})
    EXPECT_CONTAINS(out, part);
  const auto show = [&](const std::string& what) {
    return run_ok({"data", "show", (root() / "run.toml").string(), "--checkpoint.save=unused", what});
  };
  EXPECT_CONTAINS(show("--iteration=8"), "stages: 3");
  EXPECT_EQ(show("--iteration=8"), show("--iteration=8"));
  EXPECT_CONTAINS(show("--sample=56"), "sample 56: ");  // the first sample of the second stage
  EXPECT_CONTAINS(show("--iteration=8"), "sample 59: ");
  EXPECT_NE(show("--iteration=8"), show("--iteration=7"));
  EXPECT_CONTAINS(refusal({"data", "show", (root() / "run.toml").string(), "--checkpoint.save=unused", "--sample=0",
                           "--split=valid", "--stage=x"}),
                  "must be one of web, mix, long");
  const Strings plan{"plan",
                     (root() / "run.toml").string(),
                     "--checkpoint.save=unused",
                     "--model.vocab_size=400",
                     "--hardware=h100_sxm",
                     str("--hardware_folder=", (test::source_folder() / "configs/hardware").string()),
                     "--world_size=2"};
  EXPECT_CONTAINS(run_ok(plus(plan, "--stage=long")), "stage 3 of 3, \"long\"");
  EXPECT_CONTAINS(run_ok(plan), "stage 1 of 3, \"web\"; --stage=NAME selects another");
  EXPECT_CONTAINS(refusal(plus(plan, "--stage=other")), "--stage: \"other\": must be one of web, mix, long");
}

/// Stage with random settings.
struct RandomStage {
  i64 iterations = 0, batch = 0, seq_length = 0;
  double lr = 0;  // 0 = the schedule of the run
  i64 warmup = 0;
  std::string toml;
};

class StageSource {
 public:
  StageSource(unsigned seed, std::string train, std::string more)
      : random_(seed), train_(std::move(train)), more_(std::move(more)) {}

  i64 between(i64 low, i64 high) { return std::uniform_int_distribution<i64>(low, high)(random_); }
  template <class T>
  T pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(between(0, std::ssize(values) - 1))];
  }

  RandomStage draw(bool has_layout) {
    RandomStage s{
        .iterations = between(1, 6), .batch = pick<i64>({4, 8, 12}), .seq_length = pick<i64>({16, 32, 64}), .toml = {}};
    s.toml = "[[stage]]\n" + length(s) + str("[stage.model]\nseq_length = ", s.seq_length, "\n");
    if (s.seq_length == 64)
      s.toml +=
          "rope_scaling_type = \"yarn\"\nrope_scaling_factor = 2\n"
          "rope_scaling_original_max_position_embeddings = 32\n";
    s.toml += str("[stage.training]\nmicro_batch_size = ", pick<i64>({1, 2}), "\nglobal_batch_size = ", s.batch, "\n");
    s.toml += data();
    if (between(0, 2) == 0) {
      s.lr = pick<double>({1e-3, 5e-3});
      s.warmup = between(0, s.iterations - 1);
      s.toml += str("[stage.optimizer]\nlr = ", s.lr, "\nlr_warmup_iters = ", s.warmup, "\n");
    }
    if (has_layout) s.toml += "[stage.parallel]\n" + pick(layouts());
    return s;
  }

 private:
  std::string length(const RandomStage& s) {
    const i64 samples = s.iterations * s.batch + between(0, s.batch - 1);
    return pick<std::string>({str("train_iters = ", s.iterations), str("train_samples = ", samples),
                              str("train_tokens = ", samples * s.seq_length)}) +
           (between(0, 5) == 0 ? "\nrepeat_data = true\n" : "\n");
  }
  std::string data() {
    const std::string paths = pick<std::string>({str("\"", train_, "\""), str("\"", train_, "\", \"", more_, "\""),
                                                 str("\"0.3\", \"", train_, "\", \"0.7\", \"", more_, "\""),
                                                 str("\"0.9:0.1\", \"", more_, "\", \"0.1:0.9\", \"", train_, "\"")});
    return str("[stage.data]\ndata_path = [", paths, "]\n",
               pick<std::string>({"", "reset_attention_mask = true\n", "eod_mask_loss = true\n"}),
               between(0, 2) == 0 ? "fim_rate = 0.5\nfim_prefix_token = \"<0x01>\"\nfim_middle_token = \"<0x02>\"\n"
                                    "fim_suffix_token = \"<0x03>\"\n"
                                  : "");
  }
  static std::vector<std::string> layouts() {
    return {"zero_stage = 1\n", "zero_stage = 3\n", "tensor_model_parallel_size = 2\n", "context_parallel_size = 2\n",
            "pipeline_model_parallel_size = 2\n"};
  }

  std::mt19937 random_;
  std::string train_, more_;
};

class RandomStagesTest : public StagesTest {
 protected:
  /// Run with random stages, on two ranks if the stages have layouts.
  struct Run {
    std::string name, file;
    std::vector<RandomStage> stages;
    std::string tables;
    i64 iterations = 0;
    bool has_layouts = false;
    Strings keys;
  };

  Run draw(const std::string& name, StageSource& source, bool has_mpirun) const {
    Run run{.name = name, .file = {}, .stages = {}, .tables = {}, .keys = {}};
    run.has_layouts = has_mpirun && source.between(0, 1) == 0;
    for (i64 i = source.between(2, 4); i > 0; --i) {
      run.stages.push_back(source.draw(run.has_layouts));
      run.tables += run.stages.back().toml;
      run.iterations += run.stages.back().iterations;
    }
    run.file = file(name + ".toml", run.tables);
    run.keys = {str("--checkpoint.save_interval=", source.between(1, 4)), "--training.eval_iters=1",
                "--optimizer.lr_warmup_iters=0"};
    return run;
  }

  Outcome start(const Run& run, const std::string& save, Strings more = {}) const {
    more.insert(more.end(), run.keys.begin(), run.keys.end());
    const Strings args = pretrain_with(run.file, save, more);
    return run.has_layouts ? run_on(2, args) : EndToEnd::run(args);
  }

  void check_steps(const Run& run) const {
    const auto steps = records(run.name, "train");
    ASSERT_EQ(std::ssize(steps), run.iterations);
    i64 first = 0, consumed = 0;
    for (const RandomStage& stage : run.stages) {
      for (i64 i = 0; i < stage.iterations; ++i) {
        const nlohmann::json& step = steps[static_cast<std::size_t>(first + i)];
        consumed += stage.batch;
        EXPECT_EQ(step["consumed_samples"], consumed) << step;
        const double lr = stage.lr > 0 ? expected_lr(stage.lr, stage.warmup, stage.iterations, i)
                                       : expected_lr(1e-2, 0, run.iterations, first + i);
        EXPECT_NEAR(step["learning_rate"].get<double>(), lr, 1e-12) << step;
      }
      first += stage.iterations;
    }
  }

  /// A copy that is killed at a random point, and finished by the same command, is bitwise identical.
  void check_kill(const Run& run, StageSource& source) const {
    const std::string killed = run.name + "_killed";
    start(run, killed,
          {"--fault_injection.kind=kill", "--fault_injection.iterations=0",
           str("--fault_injection.iteration=", source.between(1, run.iterations)),
           "--fault_injection.point=" +
               source.pick<std::string>({"step", "before_files", "after_files", "before_rename", "before_latest"})});
    const Outcome again = start(run, killed);
    ASSERT_EQ(again.code, 0) << again.out << again.err;
    expect_same_checkpoint(run.name, killed);
    EXPECT_EQ(losses(killed, run.iterations), losses(run.name, run.iterations));
  }

  /// On one rank, without the layouts of the stages, the losses are the same up to rounding.
  void check_one_rank(const Run& run) const {
    std::string tables;
    for (const std::string& line : split(run.tables, '\n')) {
      const bool is_layout = line.starts_with("[stage.parallel]") || line.find("parallel_size") != line.npos ||
                             line.starts_with("zero_stage");
      if (!is_layout) tables += line + "\n";
    }
    const std::string name = run.name + "_one";
    run_ok(pretrain_with(file(name + ".toml", tables), name, run.keys));
    const std::vector<double> one = losses(name, run.iterations), two = losses(run.name, run.iterations);
    ASSERT_EQ(one.size(), two.size());
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(two[i], one[i], 1e-5) << i;
  }
};

/// In the environment, RANDOM_STAGES=N sets the number of runs, and RANDOM_STAGES_SEED=S the seed.
TEST_F(RandomStagesTest, FollowDocumentedRules) {
  const char* wanted = std::getenv("RANDOM_STAGES");
  const char* seed = std::getenv("RANDOM_STAGES_SEED");
  const int runs = wanted ? std::atoi(wanted) : 5;
  const bool has_mpirun = std::system("command -v mpirun >/dev/null") == 0;
  for (int number = 0; number < runs; ++number) {
    StageSource source(static_cast<unsigned>((seed ? std::atoi(seed) : 1) + number), dataset(),
                       (root() / "more_text_document").string());
    const Run run = draw(str("run", number), source, has_mpirun);
    SCOPED_TRACE(str(run.name, "\n", run.tables));
    const Outcome outcome = start(run, run.name);
    ASSERT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    check_steps(run);
    check_kill(run, source);
    if (run.has_layouts) check_one_rank(run);
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace mcpp::stages_test
