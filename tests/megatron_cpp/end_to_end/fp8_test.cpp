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
  EXPECT_CONTAINS(run_ok(pretrain("run", fp8())), "linear maps of 2 layers in fp8 (hybrid, tensorwise), emulated");
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

/// A run with several recipes stops on one rank, continues on two stages, and is bitwise identical to a run without
/// interruption: random numbers of stochastic rounding depend on samples, not on ranks or starts.
TEST_F(Fp8EndToEndTest, ResumesRecipesOfLayersBitwise) {
  const Strings recipes{
      "--training.precision=bf16", "--training.micro_batch_size=1",
      R"(--training.low_precision=[{modules = "decoder.layers.0.*", recipe = "nvfp4"}, )"
      R"({modules = "*.mlp.*", recipe = "mxfp8", gradients = "e5m2"}, {modules = "output_layer", recipe = "blockwise"}])"};
  const std::string plan = run_ok(pretrain("whole", recipes));
  EXPECT_CONTAINS(plan, "decoder.layers.0.*: 4 linear layers, nvfp4\n");
  EXPECT_CONTAINS(plan, "*.mlp.*: 2 linear layers, mxfp8, gradients in e5m2\n");
  train("run", plus(recipes, "--training.exit_interval=5"));
  train_on(2, "run", plus(recipes, "--parallel.pipeline_model_parallel_size=2"));
  EXPECT_EQ(losses("whole", 12), losses("run", 12));
  expect_same_checkpoint("whole", "run");
  const Outcome refused = run(pretrain("run", plus(in_precision("bf16"), "--training.micro_batch_size=1")));
  EXPECT_EQ(refused.code, 2);
  EXPECT_CONTAINS(refused.err, "training.low_precision: [{modules = \"decoder.layers.0.*\"");
}

/// The run stops on one rank, continues on two stages, and equals an uninterrupted one, because its histories are
/// saved.
TEST_F(Fp8EndToEndTest, ResumesDelayedScalingBitwise) {
  const Strings delayed = fp8({"--training.fp8_recipe=delayed", "--training.micro_batch_size=1"});
  train("whole", delayed);
  train("run", plus(delayed, "--training.exit_interval=5"));
  train_on(2, "run", plus(delayed, "--parallel.pipeline_model_parallel_size=2"));
  EXPECT_EQ(losses("whole", 12), losses("run", 12));
  expect_same_checkpoint("whole", "run");
}

TEST_F(Fp8EndToEndTest, BeginsNewHistoriesWhenRecipeOrLengthChanges) {
  train("run", fp8({"--training.exit_interval=3"}));
  const Strings delayed{"--training.fp8_recipe=delayed", "--training.exit_interval=6"};
  EXPECT_EQ(run(pretrain("run", fp8(delayed))).code, 2);
  const auto resume = [&](const Strings& more, const std::string& key) {
    return run_ok(pretrain("run", plus(fp8(more), "--checkpoint.allow_changed_keys=" + key)));
  };
  constexpr const char* kNew = "have no history of this length in the checkpoint";
  EXPECT_CONTAINS(resume(delayed, "training.fp8_recipe"), kNew);
  const Strings shorter{"--training.fp8_recipe=delayed", "--training.exit_interval=9",
                        "--training.fp8_amax_history_len=4"};
  EXPECT_CONTAINS(resume(shorter, "training.fp8_amax_history_len"), kNew);
  resume({}, "training.fp8_recipe,training.fp8_amax_history_len");
  losses("run", 12);
}

TEST_F(Fp8EndToEndTest, RejectsRecipesThatFitNoLayerOrLayout) {
  const auto message = [&](const std::string& table) {
    const Outcome refused =
        run_on(2, pretrain("run", {"--training.precision=bf16", "--parallel.tensor_model_parallel_size=2",
                                   str("--training.low_precision=[", table, "]")}));
    EXPECT_EQ(refused.code, 2) << refused.out;
    return refused.err;
  };
  const std::string no_layer = message(R"({modules = "decoder.layers.*.mlp.linear_fc3", recipe = "mxfp8"})"),
                    straddles = message(R"({modules = "*.linear_proj", recipe = "blockwise"})");
  EXPECT_CONTAINS(no_layer, "no linear layer matches \"decoder.layers.*.mlp.linear_fc3\"; did you mean");
  EXPECT_CONTAINS(straddles, "blocks must not straddle ranks");
}

}  // namespace
}  // namespace mcpp
