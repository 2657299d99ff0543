// The real program in fp8, which a CPU emulates.
#include "tests/megatron_cpp/end_to_end/end_to_end_on_ranks.h"

namespace mcpp {
namespace {

class Fp8EndToEndTest : public EndToEndOnRanks {
 protected:
  static Strings fp8(const Strings& more = {}) {
    Strings words = in_precision("fp8");
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(Fp8EndToEndTest, TrainsInFp8AndEvaluatesInBf16) {
  EXPECT_CONTAINS(run_ok(pretrain("run", fp8())), "linear maps of 2 layers in fp8 (hybrid), emulated");
  train("bf16", in_precision("bf16"));
  const std::vector<double> found = losses("run", 12), plain = losses("bf16", 12);
  EXPECT_NE(found, plain);
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(found[i] / plain[i], 1, 0.01) << i;
  // If evaluation used fp8, the scales over all tokens of a batch would make the result depend on the batch size.
  const auto evaluated = [&](const char* size) {
    return nlohmann::json::parse(
               run_ok({"evaluate", "--load=" + at("run"), "--text=" + (root() / "held_out.txt").string(), "--json",
                       str("--micro_batch_size=", size)}))["nll"]
        .get<double>();
  };
  EXPECT_NEAR(evaluated("1") / evaluated("16"), 1, 1e-6);
}

TEST_F(Fp8EndToEndTest, PipelineIsBitwiseIdenticalToOneRank) {
  const std::string batch = "--training.micro_batch_size=1";
  train("one", fp8({batch}));
  train_on(2, "two", fp8({batch, "--parallel.pipeline_model_parallel_size=2"}));
  EXPECT_EQ(losses("one", 12), losses("two", 12));
  expect_same_checkpoint("one", "two");
}

/// The run stops on one rank, resumes with tensor and sequence parallelism on two, and resumes on one: no fp8 state is
/// saved.
TEST_F(Fp8EndToEndTest, ResumesOnDifferentLayout) {
  train("whole", fp8());
  train("run", fp8({"--training.exit_interval=5"}));
  train_on(2, "run",
           fp8({"--training.exit_interval=9", "--parallel.tensor_model_parallel_size=2",
                "--parallel.sequence_parallel=true"}));
  train("run", fp8());
  const std::vector<double> whole = losses("whole", 12), parts = losses("run", 12);
  EXPECT_EQ(std::vector(whole.begin(), whole.begin() + 5), std::vector(parts.begin(), parts.begin() + 5));
  for (std::size_t i = 5; i < whole.size(); ++i) EXPECT_NEAR(parts[i] / whole[i], 1, 5e-3) << i;
}

TEST_F(Fp8EndToEndTest, RefusesToEnableFp8InExistingRun) {
  train("run", plus(in_precision("bf16"), "--training.exit_interval=5"));
  const Outcome refused = run(pretrain("run", fp8()));
  EXPECT_EQ(refused.code, 2) << refused.out;
  EXPECT_CONTAINS(refused.err, "training.fp8: \"none\" in the checkpoint, \"hybrid\" now");
  train("run", fp8({"--checkpoint.allow_changed_keys=training.fp8"}));
  losses("run", 12);
}

}  // namespace
}  // namespace mcpp
