// Several validation sets during training, and training with mock data.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"
#include "tests/support/readers/event_reader.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

class ValidationSetsTest : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    const std::string text = read_text_file(root() / "held_out.txt");
    for (const auto& [name, part] : {std::pair{"near", text.substr(0, 2000)}, {"far", text.substr(2000)}}) {
      write_file_atomic(folder_ / str(name, ".txt"), part);
      run_ok({"preprocess", at(str(name, ".txt")), "--text_document=paragraph", "--output_prefix=" + at(name),
              "--tokenizer_model=" + (root() / "tokenizer.model").string()});
    }
  }
  Strings with_sets(const Strings& more = {}) const {
    Strings words{"--data.data_path=",
                  "--data.split=969,30,1",
                  "--data.train_data_path=" + dataset(),
                  "--data.valid_data_path=" + at("near_text_document") + "," + at("far_text_document"),
                  "--data.multiple_validation_sets",
                  "--training.eval_on_start"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Resumes on two pipeline stages, or on one rank if mpirun is missing.
  Outcome resume_as_pipeline(const std::string& save, const Strings& more) const {
    if (!has_mpirun()) return run(pretrain(save, more));
    return run_on(2, pretrain(save, plus(more, "--parallel.pipeline_model_parallel_size=2")));
  }
  static bool has_mpirun() { return std::system("command -v mpirun >/dev/null") == 0; }
  i64 tokens_of(const std::string& name) const {
    return Json::parse(read_text_file(at(name) + "_text_document.json"))["tokens"];
  }
  /// Returns the losses by curve and iteration.
  std::map<std::string, std::map<i64, double>> curves(const std::string& save) const {
    std::map<std::string, std::map<i64, double>> found;
    for (const Json& line : metrics(save)) {
      if (line["type"] == "train") continue;
      const bool is_new = found[line["type"]].emplace(line["iteration"], line["lm_loss"]).second;
      EXPECT_TRUE(is_new) << "evaluated twice: " << line;
    }
    return found;
  }
};

TEST_F(ValidationSetsTest, EachSetHasItsOwnCurve) {
  const std::string log = run_ok(pretrain("both", with_sets({"--logging.tensorboard_dir=" + at("tb")})));
  EXPECT_CONTAINS(log, " validation-near loss at iteration 0 | lm loss value: ");
  EXPECT_CONTAINS(log, " validation-far loss at iteration 12 | ");
  const auto both = curves("both");
  ASSERT_EQ(both.size(), 2u);
  const test::Events events = test::read_events(folder_ / "tb");
  for (const char* name : {"near", "far"}) {
    Strings alone = with_sets();
    alone[3] = "--data.valid_data_path=" + at(str(name, "_text_document"));
    alone[4] = "--data.multiple_validation_sets=false";
    train(name, alone);
    const std::string curve = str("validation-", name);
    EXPECT_EQ(both.at(curve), curves(name).at("validation")) << name;
    EXPECT_EQ(both.at(curve).size(), 4u) << "iterations 0, 5, 10, 12";
    std::vector<std::pair<i64, float>> points;
    for (const auto& [iteration, loss] : both.at(curve)) points.emplace_back(iteration, static_cast<float>(loss));
    EXPECT_EQ(events.scalars.at("lm loss " + curve), points);
    EXPECT_EQ(events.scalars.at("lm loss " + curve + " ppl vs samples").size(), 4u);
  }
  EXPECT_NE(both.at("validation-near"), both.at("validation-far"));
  train("none", {"--data.data_path=", "--data.split=969,30,1", "--data.train_data_path=" + dataset()});
  EXPECT_EQ(losses("both", 12), losses("none", 12));
  expect_same_checkpoint("both", "none");

  run_ok({"report", at("both"), "--output=" + at("report.html")});
  const std::string page = read_text_file(at("report.html"));
  for (const char* curve : {"validation-near", "validation-far"})
    EXPECT_CONTAINS(page, str("\"", curve, "\":{\"iteration\":[0,5,10,12]"));
}

TEST_F(ValidationSetsTest, DataShowSelectsSetByName) {
  Strings show{"data",
               "show",
               (root() / "run.toml").string(),
               "--sample=0",
               "--split=valid-far",
               "--checkpoint.save=" + at("run")};
  const Strings keys = with_sets();
  show.insert(show.end(), keys.begin(), keys.end());
  EXPECT_CONTAINS(run_ok(show), at("far_text_document"));
  show[4] = "--split=valid";
  const Outcome outcome = run(show);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "must be one of the validation sets valid-near, valid-far");
}

TEST_F(ValidationSetsTest, ReadsFullSetOnceOnEveryLayout) {
  const Strings keys = with_sets({"--data.full_validation", "--training.train_iters=5"});
  train("one", keys);
  const auto one = curves("one");
  for (const Json& line : metrics("one")) {
    if (line["type"] == "train") continue;
    const i64 tokens = line["type"] == "validation-near" ? tokens_of("near") : tokens_of("far");
    EXPECT_EQ(line["tokens"], (tokens - 1) / 32 * 32) << "full samples of 32, once, for any batch size";
  }
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is missing";
  // Pipelines keep the order of summation.
  for (const auto& [key, tolerance] : {std::pair{"", 1e-4},
                                       {"tensor_model_parallel_size", 1e-4},
                                       {"pipeline_model_parallel_size", 0.},
                                       {"context_parallel_size", 1e-4}}) {
    const std::string save = str("layout_", key);
    const Strings args = pretrain(save, *key ? plus(keys, str("--parallel.", key, "=2")) : keys);
    const Outcome outcome = run_on(2, args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto many = curves(save);
    ASSERT_EQ(many.size(), one.size());
    for (const auto& [name, curve] : one)
      for (const auto& [iteration, loss] : curve)
        EXPECT_NEAR(many.at(name).at(iteration), loss, tolerance) << save << " " << name << " " << iteration;
  }
}

/// The run ends in the evaluation of the second set. The next start, as a pipeline, evaluates only that set.
TEST_F(ValidationSetsTest, EvaluatesMissedSetsAfterStop) {
  const Strings slow =
      with_sets({"--training.eval_iters=300", "--training.eval_interval=4", "--training.train_iters=8"});
  train("whole", slow);
  const auto whole = curves("whole");
  for (const int signal : {SIGTERM, SIGKILL}) {
    const std::string save = str("signal_", signal);
    {
      test::Program program(pretrain(save, slow), root() / "interrupted");
      wait_for_lines(save, 2 + 4 + 1);  // two sets at iteration 0, four steps, one set
      program.signal(signal);
      EXPECT_EQ(program.wait().code, signal == SIGKILL ? -SIGKILL : 85);
    }
    const auto before = curves(save);
    EXPECT_EQ(before.at("validation-near").size(), 2u);
    EXPECT_EQ(before.at("validation-far").size(), 1u) << "the signal came too late for this test";
    const Outcome resumed = resume_as_pipeline(save, slow);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(curves(save), whole);
    EXPECT_EQ(losses(save, 8), losses("whole", 8));
  }
}

TEST_F(ValidationSetsTest, NamesContradictingKeys) {
  const auto refused = [&](const Strings& more, const std::string& part) {
    const Outcome outcome = run(pretrain("x", more));
    EXPECT_EQ(outcome.code, 2);
    EXPECT_CONTAINS(outcome.err, part);
  };
  refused({"--data.mock_data"}, "data.mock_data: cannot be combined with data_path");
  refused({"--data.data_path=", "--data.train_data_path=a"},
          "data.split: applies to data_path only, not to train_data_path");
  refused({"--data.data_path=", "--data.mock_data", "--data.full_validation"},
          "data.full_validation: cannot be combined with mock_data");
  refused({"--data.data_path=", "--data.mock_data", "--data.multiple_validation_sets"},
          "data.multiple_validation_sets: cannot be combined with mock_data");
  refused({"--data.data_path=", "--data.mock_data", "--data.eod_token=400"},
          "data.eod_token: 400 is outside the vocabulary of 400");
  refused({"--data.data_path="}, "or set data.mock_data");
}

TEST_F(ValidationSetsTest, MockDataIsIndependentOfLayoutAndResume) {
  const Strings mock{"--data.data_path=",      "--data.mock_data",   "--data.tokenizer_model=",
                     "--model.vocab_size=400", "--data.eod_token=1", "--data.reset_attention_mask"};
  train("whole", mock);
  const auto expected = losses("whole", 12);
  EXPECT_EQ(curves("whole").at("validation").size(), 3u);
  Strings half = mock;
  half.push_back("--training.exit_interval=4");
  train("resumed", half);
  train("resumed", mock);
  EXPECT_EQ(losses("resumed", 12), expected);
  expect_same_checkpoint("whole", "resumed");
  EXPECT_CONTAINS(run_ok({"data", "show", (root() / "run.toml").string(), mock[0], mock[1], mock[2], mock[3], mock[4],
                          "--sample=3", "--checkpoint.save=" + at("x")}),
                  "sample 3: mock data");
  const Outcome other = run(pretrain("resumed", {}));
  EXPECT_EQ(other.code, 2);
  EXPECT_CONTAINS(other.err, "data.mock_data");
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is missing";
  for (const Strings& layout : {Strings{}, Strings{"--parallel.pipeline_model_parallel_size=2"}}) {
    const std::string save = str("ranks", layout.size());
    Strings args = pretrain(save, mock);
    args.insert(args.end(), layout.begin(), layout.end());
    const Outcome outcome = run_on(2, args);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto many = losses(save, 12);
    for (std::size_t i = 0; i < many.size(); ++i) EXPECT_NEAR(many[i], expected[i], 1e-4);
  }
}

}  // namespace
}  // namespace mcpp
