// Averaged weights of a run: resumed bitwise, begun and ended by a restart, evaluated during training, and used by
// evaluate, generate and export-hf.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

class EmaTest : public EndToEnd {
 protected:
  static Strings averaged(const Strings& more = {}) {
    Strings words{"--optimizer.ema_decay=0.8"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Returns the losses of a curve by iteration.
  std::map<i64, double> curve(const std::string& save, const std::string& split) const {
    std::map<i64, double> losses;
    for (const Json& line : records(save, split)) {
      EXPECT_TRUE(losses.emplace(line["iteration"], line["lm_loss"]).second) << "evaluated twice: " << line;
    }
    return losses;
  }
  /// Returns the loss of a checkpoint on the held-out text.
  double loss_of(const std::string& load, const Strings& more = {}) const {
    Strings args{"evaluate", "--load=" + at(load), "--text=" + (root() / "held_out.txt").string(), "--json",
                 "--tokenizer_model=" + (root() / "tokenizer.model").string()};
    args.insert(args.end(), more.begin(), more.end());
    return Json::parse(run_ok(args))["loss"];
  }
};

TEST_F(EmaTest, ResumesBitwiseIdenticallyWithEvaluations) {
  for (const std::string precision : {"fp32", "bf16"}) {
    Strings args = averaged(in_precision(precision));
    args.insert(args.end(), {"--training.eval_ema", "--optimizer.ema_interval=2", "--optimizer.ema_start=1"});
    const std::string whole = "whole_" + precision, parts = "parts_" + precision;
    train(whole, args);
    train(parts, plus(args, "--training.exit_interval=5"));
    train(parts, plus(plus(args, "--training.exit_interval=9"), "--checkpoint.async_save"));
    train(parts, args);
    expect_same_checkpoint(whole, parts);
    EXPECT_EQ(losses(whole, 12), losses(parts, 12));
    for (const char* split : {"validation", "ema-validation", "ema-test"})
      EXPECT_EQ(curve(whole, split), curve(parts, split)) << split;
  }
}

TEST_F(EmaTest, HasItsOwnCurvesAndLeavesTrainingUnchanged) {
  train("plain");
  const std::string log = run_ok(pretrain("run", averaged({"--training.eval_ema", "--checkpoint.async_save"})));
  EXPECT_CONTAINS(log, " ema-validation loss at iteration 5 | lm loss value: ");
  EXPECT_EQ(losses("run", 12), losses("plain", 12));
  EXPECT_EQ(curve("run", "validation"), curve("plain", "validation"));
  const std::map<i64, double> average = curve("run", "ema-validation");
  ASSERT_EQ(average.size(), 3u) << "iterations 5, 10, 12";
  EXPECT_NE(average, curve("run", "validation"));
  EXPECT_EQ(curve("run", "ema-test").size(), 1u);
  EXPECT_CONTAINS(run({"checkpoint", "diff", at("plain"), at("run")}).out, " tensors compared, 0 differ");
}

TEST_F(EmaTest, BeginsAndEndsWithRestart) {
  train("plain");
  train("run", {"--training.exit_interval=4"});
  EXPECT_CONTAINS(run_ok(pretrain("run", averaged({"--training.exit_interval=8"}))),
                  "optimizer.ema_decay: the checkpoint has no averaged weights; the average starts from its weights");
  EXPECT_CONTAINS(run_ok({"checkpoint", "show", at("run")}), "optimizer/ema/decoder.final_layernorm.weight");
  EXPECT_CONTAINS(run_ok(pretrain("run")),
                  "optimizer.ema_decay: is 0; the averaged weights of the checkpoint are not continued");
  expect_same_checkpoint("plain", "run");
  EXPECT_EQ(losses("run", 12), losses("plain", 12));
}

TEST_F(EmaTest, BeginsInRunWithLocalCheckpoints) {
  const Strings local{"--checkpoint.local_save=" + at("local"), "--checkpoint.local_save_interval=1",
                      "--checkpoint.save_interval=0"};
  Strings killed = local, resumed = averaged(local);
  killed.insert(killed.end(), {"--fault_injection.kind=kill", "--fault_injection.iteration=6"});
  EXPECT_EQ(run(pretrain("run", killed)).code, -9);
  const std::string log = run_ok(pretrain("run", resumed));
  EXPECT_CONTAINS(log, "resuming from " + at("local"));
  EXPECT_CONTAINS(log, "the average starts from its weights");
}

TEST_F(EmaTest, CommandsUseAveragedWeights) {
  train("run", averaged());
  const double model = loss_of("run"), average = loss_of("run", {"--weights=ema"});
  EXPECT_NE(model, average);
  EXPECT_EQ(loss_of("run", {"--weights=model"}), model);
  run_ok({"checkpoint", "export-hf", at("run"), at("hf"), "--weights=ema"});
  run_ok({"checkpoint", "import-hf", at("hf"), "--save=" + at("imported")});
  EXPECT_EQ(loss_of("imported"), average);
  const Strings export_dcp{"checkpoint", "export-dcp", at("run"), at("dcp"), "--names=huggingface", "--weights=ema"};
  const Outcome with_optimizer = run(export_dcp);
  EXPECT_EQ(with_optimizer.code, 2);
  EXPECT_CONTAINS(with_optimizer.err, "--weights: the state of AdamW does not belong to averaged weights");
  run_ok(plus(export_dcp, "--weights_only"));
  run_ok({"checkpoint", "import", at("dcp"), "--config=" + at("hf/config.json"), "--save=" + at("from_dcp")});
  EXPECT_EQ(run({"checkpoint", "diff", at("from_dcp"), at("imported")}).code, 0);
  const Strings generate{"generate", "--load=" + at("run"), "--prompt=the", "--max_new_tokens=16", "--top_k=1"};
  EXPECT_EQ(run_ok(plus(generate, "--weights=ema")),
            run_ok({"generate", "--load=" + at("imported"), "--prompt=the", "--max_new_tokens=16", "--top_k=1"}));
}

TEST_F(EmaTest, IsEvaluatedIdenticallyOnTwoRanks) {
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "mpirun is missing";
  const Strings args = averaged({"--training.eval_ema"});
  train("one", args);
  for (const char* layout : {"--parallel.zero_stage=3", "--parallel.tensor_model_parallel_size=2"}) {
    const std::string name = std::string(layout).substr(2);
    const Outcome outcome = run_on(2, pretrain(name, plus(args, layout)));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const std::map<i64, double> one = curve("one", "ema-validation"), two = curve(name, "ema-validation");
    ASSERT_EQ(one.size(), two.size());
    for (const auto& [iteration, loss] : one) EXPECT_NEAR(two.at(iteration), loss, 1e-4 * loss) << iteration;
  }
}

TEST_F(EmaTest, RejectsBadInput) {
  const auto expect_refused = [&](const Strings& args, const std::string& message) {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_CONTAINS(outcome.err, message);
  };
  expect_refused(pretrain("bad", {"--optimizer.ema_decay=1"}), "optimizer.ema_decay");
  expect_refused(pretrain("bad", {"--optimizer.ema_decay=0.9", "--optimizer.ema_interval=0"}),
                 "optimizer.ema_interval");
  expect_refused(pretrain("bad", {"--optimizer.ema_start=3"}),
                 "optimizer.ema_start, ema_interval: only read with ema_decay");
  expect_refused(pretrain("bad", {"--training.eval_ema"}),
                 "no averaged weights are kept; set optimizer.ema_decay, or remove it");
  train("plain", {"--training.train_iters=4"});
  const std::string absent = "has no averaged weights, because it was trained without optimizer.ema_decay";
  expect_refused({"evaluate", "--load=" + at("plain"), "--weights=ema", "--text=" + (root() / "held_out.txt").string()},
                 absent);
  expect_refused({"generate", "--load=" + at("plain"), "--weights=ema"}, absent);
  expect_refused({"checkpoint", "export-hf", at("plain"), at("hf"), "--weights=ema"}, absent);
  expect_refused({"generate", "--load=" + at("plain"), "--weights=average"}, "weights");
}

}  // namespace
}  // namespace mcpp
