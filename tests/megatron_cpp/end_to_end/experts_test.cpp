// Mixtures of experts with the real program: logged statistics, evaluation and generation on other layouts, and
// upcycling of dense checkpoints.
#include "tests/megatron_cpp/end_to_end/end_to_end.h"

namespace mcpp {
namespace {

class ExpertsEndToEndTest : public EndToEnd {
 protected:
  static Strings gated() {
    return {"--model.add_bias_linear=false",        "--model.normalization=RMSNorm", "--model.activation_func=swiglu",
            "--model.position_embedding_type=rope", "--model.hidden_dropout=0",      "--model.attention_dropout=0"};
  }
  static Strings with_experts() {
    return joined(gated(), {"--model.num_experts=4", "--model.moe_router_topk=2", "--model.moe_aux_loss_coeff=0.01"});
  }
  double nll(const std::string& run, int ranks = 1, const Strings& more = {}) const {
    const Outcome outcome =
        run_on(ranks, joined({"evaluate", str("--load=", at(run)), str("--text=", (root() / "held_out.txt").string()),
                              "--stride=8", "--json"},
                             more));
    EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
    return nlohmann::json::parse(outcome.out.substr(outcome.out.find('{')))["nll"].get<double>();
  }
};

TEST_F(ExpertsEndToEndTest, LogsExpertLoad) {
  const std::string out = run_ok(pretrain("run", with_experts()));
  EXPECT_CONTAINS(out, "| largest expert load: ");
  EXPECT_CONTAINS(out, "| load balancing loss: ");
  const auto lines = metrics("run");
  const nlohmann::json& experts = lines.front()["experts"];
  ASSERT_EQ(experts.size(), 2u) << "layers";
  double choices = 0;
  for (const nlohmann::json& tokens : experts[0]["tokens_per_expert"]) choices += tokens.get<double>();
  EXPECT_EQ(choices, 8 * 32 * 2);
  EXPECT_NEAR(experts[0]["load_balancing_loss"].get<double>(), 1, 0.2);
  EXPECT_CONTAINS(run_ok(joined(pretrain("plan", with_experts()),
                                {"--dry_run", "--world_size=2", "--parallel.expert_model_parallel_size=2"})),
                  "more if all tokens choose the experts of one rank");
}

TEST_F(ExpertsEndToEndTest, EvaluationAndGenerationAreIndependentOfLayout) {
  train("run", with_experts());
  const double expected = nll("run");
  const auto keys = [](int tp, int ep, int etp) {
    return Strings{str("--parallel.tensor_model_parallel_size=", tp), str("--parallel.expert_model_parallel_size=", ep),
                   str("--parallel.expert_tensor_parallel_size=", etp)};
  };
  EXPECT_NEAR(nll("run", 2, keys(1, 2, 1)) / expected, 1, 1e-6);
  EXPECT_NEAR(nll("run", 3, keys(1, 1, 1)) / expected, 1, 1e-6);
  EXPECT_NEAR(nll("run", 4, keys(2, 4, 1)) / expected, 1, 1e-6) << "ranks with different windows share the experts";
  EXPECT_NEAR(nll("run", 4, keys(2, 1, 2)) / expected, 1, 1e-6);
  const Strings generate{"generate", str("--load=", at("run")), "--prompt=ROMEO:", "--max_new_tokens=30", "--seed=3"};
  const std::string text = run_ok(generate);
  for (const Strings& layout : {keys(2, 2, 1), keys(2, 1, 2), keys(1, 2, 1), keys(1, 1, 2)})
    EXPECT_EQ(run_on(2, joined(generate, layout)).out, text);
  const Strings hierarchical{"--parallel.moe_token_dispatcher_type=hierarchical",
                             "--parallel.moe_dispatch_node_ranks=2"};
  EXPECT_NEAR(nll("run", 4, joined(keys(1, 4, 1), hierarchical)) / expected, 1, 1e-6);
  for (const Strings& layout : {keys(1, 4, 1), keys(2, 4, 1), keys(2, 2, 2), joined(keys(1, 4, 1), hierarchical),
                                joined(keys(1, 2, 1), {"--parallel.pipeline_model_parallel_size=2",
                                                       "--parallel.moe_token_dispatcher_type=allgather"})})
    EXPECT_EQ(run_on(4, joined(generate, layout)).out, text);
  const Outcome copies = run_on(4, joined(generate, keys(1, 2, 1)));
  EXPECT_EQ(copies.code, 2);
  EXPECT_CONTAINS(copies.err, "4 ranks hold the model 4 times");
  EXPECT_CONTAINS(copies.err, "or distribute the experts over all 4: --parallel.expert_model_parallel_size x ");
}

TEST_F(ExpertsEndToEndTest, EvaluationIsIndependentOfBatchSize) {
  const std::string out = run_ok(pretrain("run", joined(with_experts(), {"--model.moe_expert_capacity_factor=0.5"})));
  EXPECT_CONTAINS(out, "| dropped tokens: ");
  const double expected = nll("run", 1, {"--micro_batch_size=1"});
  for (const int windows : {3, 8})
    EXPECT_NEAR(nll("run", 1, {str("--micro_batch_size=", windows)}) / expected, 1, 1e-7);
  EXPECT_NEAR(nll("run", 2, {"--parallel.expert_model_parallel_size=2", "--micro_batch_size=3"}) / expected, 1, 1e-6);
}

TEST_F(ExpertsEndToEndTest, UpcycledModelMatchesDenseModel) {
  train("dense", gated());
  run_ok({"checkpoint", "upcycle", at("dense"), at("start"), "--num_experts=4", "--moe_router_topk=2"});
  EXPECT_NEAR(nll("start") / nll("dense"), 1, 1e-5);
  train("moe", joined(with_experts(), {str("--checkpoint.load=", at("start")), "--checkpoint.finetune=true"}));
  EXPECT_LT(losses("moe", 12).front(), losses("dense", 12).front());
  const Outcome shared = run(
      {"checkpoint", "upcycle", at("dense"), at("no"), "--num_experts=4", "--moe_shared_expert_intermediate_size=8"});
  EXPECT_EQ(shared.code, 2);
  EXPECT_CONTAINS(shared.err, "to initialize a shared expert with");
  const Outcome again = run({"checkpoint", "upcycle", at("moe"), at("no"), "--num_experts=4"});
  EXPECT_EQ(again.code, 2);
  EXPECT_CONTAINS(again.err, "already has experts");
}

TEST_F(ExpertsEndToEndTest, UpcycledModelKeepsBiases) {
  train("dense", {"--model.hidden_dropout=0", "--model.attention_dropout=0"});
  run_ok({"checkpoint", "upcycle", at("dense"), at("start"), "--num_experts=4", "--moe_router_topk=2"});
  EXPECT_NEAR(nll("start") / nll("dense"), 1, 1e-5);
  EXPECT_NEAR(nll("start", 2, {"--parallel.tensor_model_parallel_size=2"}) / nll("dense"), 1, 1e-5);
}

TEST_F(ExpertsEndToEndTest, ResumesOnDifferentExpertLayout) {
  train("run", joined(with_experts(), {"--training.train_iters=12"}));
  const std::vector<double> expected = losses("run", 12);
  ASSERT_EQ(run_on(2, joined(pretrain("parts", with_experts()),
                             {"--training.exit_interval=8", "--parallel.expert_model_parallel_size=2"}))
                .code,
            0);
  ASSERT_EQ(run_on(4, joined(pretrain("parts", with_experts()),
                             {"--parallel.tensor_model_parallel_size=2", "--parallel.expert_model_parallel_size=4",
                              "--parallel.expert_tensor_parallel_size=1", "--parallel.zero_stage=2"}))
                .code,
            0);
  const std::vector<double> actual = losses("parts", 12);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4 * expected[i]) << i;
}

/// A rank is killed in the middle of a run with hierarchical dispatch; the run continues with it bitwise identically,
/// and then with other dispatchers.
TEST_F(ExpertsEndToEndTest, DispatcherMayChangeAfterKill) {
  const Strings alltoall = joined(with_experts(),
                                  {"--parallel.expert_model_parallel_size=4", "--training.micro_batch_size=2"}),
                hierarchical = joined(alltoall, {"--parallel.moe_token_dispatcher_type=hierarchical",
                                                 "--parallel.moe_dispatch_node_ranks=2"});
  const Outcome first = run_on(4, pretrain("expected", hierarchical));
  ASSERT_EQ(first.code, 0) << first.err;
  const Outcome killed =
      run_on(4, joined(pretrain("run", hierarchical),
                       {"--fault_injection.kind=kill", "--fault_injection.rank=1", "--fault_injection.iteration=6"}));
  EXPECT_NE(killed.code, 0);
  ASSERT_EQ(run_on(4, pretrain("run", hierarchical)).code, 0);
  EXPECT_EQ(losses("run", 12), losses("expected", 12));
  expect_same_checkpoint("expected", "run");
  ASSERT_EQ(run_on(4, joined(pretrain("changed", hierarchical), {"--training.exit_interval=4"})).code, 0);
  ASSERT_EQ(run_on(4, joined(pretrain("changed", alltoall), {"--training.exit_interval=8"})).code, 0);
  ASSERT_EQ(
      run_on(2, joined(pretrain("changed", with_experts()), {"--parallel.expert_model_parallel_size=2",
                                                             "--parallel.moe_token_dispatcher_type=hierarchical"}))
          .code,
      0);
  const std::vector<double> expected = losses("expected", 12), actual = losses("changed", 12);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-4 * expected[i]) << i;
  const Outcome unused = run_on(4, joined(pretrain("bad", alltoall), {"--parallel.moe_dispatch_node_ranks=2"}));
  EXPECT_EQ(unused.code, 2);
  EXPECT_CONTAINS(unused.err, "moe_dispatch_node_ranks = 2 has an effect only with");
}

/// A rank is killed in the middle of a run with overlap; the run continues with overlap, and then without it.
TEST_F(ExpertsEndToEndTest, OverlappedRunEqualsSerialRunAfterKill) {
  const Strings serial = joined(with_experts(), {"--parallel.expert_model_parallel_size=2"}),
                overlapped = joined(serial, {"--parallel.overlap_moe_expert_parallel_comm=true"});
  ASSERT_EQ(run_on(2, pretrain("serial", serial)).code, 0);
  const Outcome killed =
      run_on(2, joined(pretrain("run", overlapped),
                       {"--fault_injection.kind=kill", "--fault_injection.rank=1", "--fault_injection.iteration=6"}));
  EXPECT_NE(killed.code, 0);
  ASSERT_EQ(run_on(2, joined(pretrain("run", overlapped), {"--training.exit_interval=8"})).code, 0);
  ASSERT_EQ(run_on(2, pretrain("run", serial)).code, 0);
  EXPECT_EQ(losses("run", 12), losses("serial", 12));
  expect_same_checkpoint("serial", "run");
}

}  // namespace
}  // namespace mcpp
