// checkpoint branch: a second run continues from a checkpoint of the stable phase of a WSD schedule and decays.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using Json = nlohmann::json;

class CheckpointBranchTest : public EndToEnd {
 protected:
  static constexpr double kLr = 1e-2, kMinLr = 1e-4;

  static Strings wsd(const Strings& more = {}) {
    Strings words{"--optimizer.lr_decay_style=WSD", "--optimizer.lr_wsd_decay_style=linear",
                  "--optimizer.lr_wsd_decay_iters=4"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// Trains a run whose learning rate is constant from iteration 3 to 8, and copies its checkpoint of iteration 4.
  void branch_from_stable_run() const {
    train("stable", wsd({"--training.train_iters=12", "--optimizer.ema_decay=0.9"}));
    EXPECT_CONTAINS(run_ok({"checkpoint", "branch", at("stable/iter_0000004"), at("branch")}),
                    "a run with checkpoint.save = " + at("branch") + " continues from it");
  }
  static Strings ending_at_8(const Strings& more = {}) {
    Strings words = wsd({"--training.train_iters=8", "--optimizer.ema_decay=0.9"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<double> learning_rates(const std::string& save) const {
    std::vector<double> rates;
    for (const Json& line : records(save, "train")) rates.push_back(line["learning_rate"]);
    return rates;
  }
};

TEST_F(CheckpointBranchTest, IsBitwiseIdenticalToRunWithPlannedDecay) {
  branch_from_stable_run();
  EXPECT_CONTAINS(run_ok({"checkpoint", "diff", at("stable/iter_0000004"), at("branch")}), "compared, 0 differ");
  EXPECT_CONTAINS(run_ok({"checkpoint", "show", at("branch")}), "branched_from");
  train("straight", ending_at_8());
  EXPECT_CONTAINS(run_ok(pretrain("branch", ending_at_8())), "resuming from " + at("branch/iter_0000004"));
  expect_same_checkpoint("straight", "branch");
  const std::vector<double> rates = learning_rates("branch");
  ASSERT_EQ(rates.size(), 4u) << "iterations 5 to 8";
  for (std::size_t i = 0; i < rates.size(); ++i)
    EXPECT_NEAR(rates[i], kMinLr + (1 - static_cast<double>(i) / 4) * (kLr - kMinLr), 1e-12) << i;
}

/// Keeps train_iters, which decides the order of samples if text is read in several epochs.
TEST_F(CheckpointBranchTest, DecaysWithLengthOfScheduleAlone) {
  branch_from_stable_run();
  train("straight", ending_at_8());
  train("branch", wsd({"--training.train_iters=12", "--optimizer.ema_decay=0.9", "--optimizer.lr_decay_iters=8",
                       "--training.exit_interval=8", "--checkpoint.allow_changed_keys=optimizer.lr_decay_iters"}));
  expect_same_checkpoint("straight", "branch");
}

TEST_F(CheckpointBranchTest, InterruptedBranchResumesAndLeavesItsOriginUnchanged) {
  branch_from_stable_run();
  train("straight", ending_at_8());
  const Strings killed =
      ending_at_8({"--fault_injection.kind=kill", "--fault_injection.iteration=7", "--checkpoint.save_interval=1"});
  EXPECT_EQ(run(pretrain("branch", killed)).code, -9);
  EXPECT_CONTAINS(run_ok(pretrain("branch", ending_at_8())), "resuming from " + at("branch/iter_0000006"));
  expect_same_checkpoint("straight", "branch");
  train("undisturbed", wsd({"--training.train_iters=12", "--optimizer.ema_decay=0.9"}));
  expect_same_checkpoint("undisturbed", "stable");
}

TEST_F(CheckpointBranchTest, RejectsBadInput) {
  const auto expect_refused = [&](const std::string& load, const std::string& save, const std::string& message) {
    const Outcome outcome = run({"checkpoint", "branch", load, save});
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_CONTAINS(outcome.err, message);
  };
  train("run", {"--checkpoint.local_save=" + at("local"), "--checkpoint.local_save_interval=1"});
  expect_refused(at("run"), at("run"), "contains checkpoints, which are never changed");
  expect_refused(at("nothing"), at("branch"), "contains no checkpoint");
  expect_refused(at("local/rank_00000-of-00001"), at("branch"), "is a part of a local checkpoint");
  run_ok({"checkpoint", "average", at("run"), "--save=" + at("mean")});
  expect_refused(at("mean"), at("branch"), "has only weights, from which a run cannot continue");
  const std::string file = at("run/iter_0000008/shard_00000-of-00001.h5");
  std::string bytes = read_text_file(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file_atomic(file, bytes);
  expect_refused(at("run/iter_0000008"), at("branch"), "shard_00000-of-00001.h5");
  EXPECT_FALSE(std::filesystem::exists(at("branch")));
}

}  // namespace
}  // namespace mcpp
