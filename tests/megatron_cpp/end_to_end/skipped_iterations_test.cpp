// training.iterations_to_skip: samples that are read but not trained on.
#include <csignal>

#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

using SkippedIterationsTest = EndToEnd;

/// A step without a finite gradient is skipped in the same way.
TEST_F(SkippedIterationsTest, AreLikeStepsWithoutFiniteGradient) {
  train("nan", {"--fault_injection.kind=nan_grad", "--fault_injection.iteration=5", "--fault_injection.iterations=2"});
  train("run", {"--training.iterations_to_skip=5,6"});
  expect_same_checkpoint("nan", "run");  // with the same consumed samples and tokens
  const auto skips = records("run", [](const nlohmann::json& line) { return line.value("event", "") == "skip"; });
  ASSERT_EQ(skips.size(), 2u);
  EXPECT_EQ(skips[0]["text"], "iteration 5: skipped (training.iterations_to_skip), with samples 32 to 39");
  std::vector<i64> trained;
  for (const nlohmann::json& line : records("run", "train")) trained.push_back(line["iteration"]);
  EXPECT_EQ(trained, (std::vector<i64>{1, 2, 3, 4, 7, 8, 9, 10, 11, 12}));
}

/// Skips the first and the last iteration, one at which a checkpoint is saved, and the first after a restart.
TEST_F(SkippedIterationsTest, ResumeBitwiseIdentically) {
  const Strings skip{"--training.iterations_to_skip=1,4,9,10,12"};
  train("whole", skip);
  train("parts", plus(skip, "--training.exit_interval=4"));
  train("parts", plus(skip, "--training.exit_interval=9"));
  train("parts", skip);
  expect_same_checkpoint("whole", "parts");
}

/// With masked targets, the number of consumed tokens depends on the text of the batch.
TEST_F(SkippedIterationsTest, CountTargetsOfTheirBatches) {
  const Strings masks{"--data.eod_mask_loss"};
  train("nan", plus(plus(masks, "--fault_injection.kind=nan_grad"), "--fault_injection.iteration=7"));
  train("run", plus(masks, "--training.iterations_to_skip=7"));
  expect_same_checkpoint("nan", "run");
}

/// Recovery from a failure at a skipped iteration is tested like at any other.
TEST_F(SkippedIterationsTest, EndWithInjectedFault) {
  const Strings skip{"--training.iterations_to_skip=6"};
  train("whole", skip);
  const Outcome killed =
      run(pretrain("run", plus(plus(skip, "--fault_injection.kind=kill"), "--fault_injection.iteration=6")));
  EXPECT_EQ(killed.code, -SIGKILL);
  EXPECT_CONTAINS(killed.err, "fault injection: kill on rank 0, iteration 6, step");
  train("run", skip);
  expect_same_checkpoint("whole", "run");
}

TEST_F(SkippedIterationsTest, RejectBadInput) {
  const Outcome outcome = run(pretrain("bad", {"--training.iterations_to_skip=0"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_CONTAINS(outcome.err, "training.iterations_to_skip");
}

}  // namespace
}  // namespace mcpp
