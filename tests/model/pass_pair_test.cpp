// A forward and a backward pass of a model with experts that run together, on ranks that exchange tokens.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "comm/local.h"
#include "model/gpt_model.h"
#include "model/pass_pair_memory.h"
#include "parallel/pp/pass_interleaver.h"
#include "parallel/pp/schedule.h"
#include "tests/support/expert_placement.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_model.h"

namespace mcpp::pass_pair_test {
namespace {

using test::Numbers;

constexpr i64 kBatch = 2;

/// Ranks that exchange tokens, each with a part of the experts.
struct DispatchCase {
  const char* name;
  TokenDispatcherType dispatcher;
  int ranks = 2, node_ranks = 2;

  std::vector<int> nodes() const {
    std::vector<int> list;
    for (int rank = 0; rank < ranks; ++rank) list.push_back(rank / node_ranks);
    return list;
  }
};

ModelConfig model_with_experts(const std::string& name) {
  ModelConfig config = test::tiny_llama();
  config.num_layers = 3;
  config.seq_length = 16;
  config.moe.num_experts = 4;
  config.moe.router_topk = 2;
  config.moe.ffn_hidden_size = 24;
  config.moe.aux_loss_coeff = 0.01;
  if (name == "shared") config.moe.shared_expert_intermediate_size = 16;
  return config;
}

/// Model of one rank, which has a part of the experts, and its microbatches.
class ExpertRank {
 public:
  ExpertRank(const ModelConfig& config, const ExpertParallel& experts)
      : self_(make_self_communicator()), model_(context_of(config, experts)), rank_(experts.exchange->rank()) {
    model_.visit([&](Param& param, int) {
      param.value = Tensor::empty(param.box.shape, DType::F32, device_, MemoryClass::Params);
      param.main_grad = Tensor::empty(param.box.shape, DType::F32, device_, MemoryClass::Grads);
      initialize(param, 7);
      param.clear_grad();
    });
    for (const auto& [layer, router] : model_.routers()) router->allocate_state();
    for (int i = 0; i < 2; ++i) {
      std::vector<i32> ids;
      for (i64 at = 0; at < config.seq_length * kBatch; ++at)
        ids.push_back(static_cast<i32>(philox_key(1, "tokens", static_cast<u64>(100 * (2 * rank_ + i) + at)) %
                                       static_cast<u64>(config.vocab_size)));
      tokens_.push_back(integers(ids, {config.seq_length, kBatch}, device_));
    }
  }

  PassInterleaver& interleaver() { return interleaver_; }
  CpuDevice& device() { return device_; }
  MicrobatchContext make_microbatch(int microbatch, bool overlaps) {
    MicrobatchContext context;
    context.is_last = false;
    for (i64 b = 0; b < kBatch; ++b) context.samples.push_back(kBatch * microbatch + b);
    if (overlaps) context.yield = [this] { interleaver_.yield(); };
    return context;
  }
  void forward(int microbatch, MicrobatchContext& context) {
    const Tensor& tokens = tokens_[static_cast<std::size_t>(microbatch)];
    losses.push_back(model_.loss(tokens, {tokens, {}}, 1, context).next.sum());
  }
  void backward(MicrobatchContext& context) { model_.backward({}, context); }
  Numbers gradients() {
    Numbers all;
    model_.visit([&](Param& param, int) {
      const Numbers x = test::to_doubles(param.main_grad);
      all.insert(all.end(), x.begin(), x.end());
    });
    return all;
  }

  Numbers losses;

 private:
  ModelContext context_of(const ModelConfig& config, const ExpertParallel& experts) {
    return {
        .config = config, .dtype = DType::F32, .recompute = {}, .device = device_, .tp = *self_, .experts = experts};
  }

  CpuDevice device_;
  std::unique_ptr<Communicator> self_;
  PassInterleaver interleaver_;
  GPTModel model_;
  int rank_;
  std::vector<Tensor> tokens_;
};

/// Runs two microbatches, of which the second forward and the first backward run together or in turn.
void run_two_microbatches(ExpertRank& rank, bool overlaps) {
  MicrobatchContext first = rank.make_microbatch(0, overlaps), second = rank.make_microbatch(1, overlaps);
  rank.forward(0, first);
  if (overlaps) {
    rank.interleaver().run([&] { rank.forward(1, second); }, [&] { rank.backward(first); });
  } else {
    rank.forward(1, second);
    rank.backward(first);
  }
  rank.backward(second);
}

class PassPairTest : public testing::TestWithParam<std::tuple<const char*, DispatchCase>> {};
INSTANTIATE_TEST_SUITE_P(
    Models, PassPairTest,
    testing::Combine(testing::Values("plain", "shared"),
                     testing::Values(DispatchCase{"alltoall", TokenDispatcherType::AllToAll},
                                     DispatchCase{"allgather", TokenDispatcherType::AllGather},
                                     DispatchCase{"hierarchical", TokenDispatcherType::Hierarchical},
                                     DispatchCase{"hierarchical_2_nodes", TokenDispatcherType::Hierarchical, 4, 2},
                                     DispatchCase{"hierarchical_nodes_of_1", TokenDispatcherType::Hierarchical, 2, 1})),
    [](const auto& p) { return str(std::get<0>(p.param), "_", std::get<1>(p.param).name); });

TEST_P(PassPairTest, MatchesPassesInTurnBitwise) {
  const DispatchCase& c = std::get<1>(GetParam());
  const ModelConfig config = model_with_experts(std::get<0>(GetParam()));
  run_local_ranks(c.ranks, [&](Communicator& exchange, int) {
    const test::ExpertPlacement placed(exchange, c.dispatcher, 1, c.nodes());
    ExpertRank in_turn(config, placed.parallel), together(config, placed.parallel);
    run_two_microbatches(in_turn, false);
    run_two_microbatches(together, true);
    EXPECT_EQ(together.losses, in_turn.losses);
    EXPECT_EQ(together.gradients(), in_turn.gradients());
  });
}

/// All experts process all tokens, so that the load is even.
TEST_P(PassPairTest, PeakMemoryMatchesEstimate) {
  const DispatchCase& c = std::get<1>(GetParam());
  ModelConfig config = model_with_experts(std::get<0>(GetParam()));
  config.moe.router_topk = config.moe.num_experts;
  const ActivationSetup setup{.micro_batch_size = kBatch,
                              .expert_parallel = c.ranks,
                              .dispatcher = c.dispatcher,
                              .dispatch_node_ranks = c.node_ranks,
                              .overlap_moe_expert_parallel_comm = true};
  const RankMemorySpec share = single_rank_spec(config);
  const i64 expected = pass_pair_bytes(config, setup, share, 0, 0, /*delays_wgrad=*/false);
  run_local_ranks(c.ranks, [&](Communicator& exchange, int) {
    const test::ExpertPlacement placed(exchange, c.dispatcher, 1, c.nodes());
    ExpertRank rank(config, placed.parallel);
    run_two_microbatches(rank, true);
    MicrobatchContext first = rank.make_microbatch(0, true), second = rank.make_microbatch(1, true);
    rank.forward(0, first);
    const MemoryUse& live = rank.device().memory().by_class[static_cast<std::size_t>(MemoryClass::Activations)];
    const i64 before = live.bytes;
    rank.device().reset_peak();
    rank.interleaver().run([&] { rank.forward(1, second); }, [&] { rank.backward(first); });
    const auto measured = static_cast<double>(live.peak - before);
    rank.backward(second);
    EXPECT_NEAR(static_cast<double>(expected) / measured, 1, 0.02);
  });
}

}  // namespace
}  // namespace mcpp::pass_pair_test
