// Experts that are padded to their capacity: on a GPU, passes of the layer wait for nothing and neither read values of
// the GPU nor write values of the host, so that they can be recorded.
#include <gtest/gtest.h>

#include <array>

#include "comm/meta.h"
#include "model/layers/moe/moe_layer.h"
#include "tensor/device_graph.h"
#include "tensor/memory_arena.h"
#include "tests/support/errors.h"
#include "tests/support/gpu.h"
#include "tests/support/tiny_model.h"

namespace mcpp::padded_experts_test {
namespace {

/// Rank 0 of ranks that all have the data of rank 0. Queues copies on the device instead of messages.
class EchoCommunicator final : public MetaCommunicator {
 public:
  explicit EchoCommunicator(i64 size) : MetaCommunicator(size) {}

  Work all_gather(const Tensor& shard, Tensor& full) override {
    for (i64 rank = 0; rank < size(); ++rank) copy(shard, full.flat(rank * shard.numel(), shard.numel()));
    return {};
  }
  Work reduce_scatter(const Tensor& full, Tensor& shard) override {
    copy(full.flat(0, shard.numel()), shard);
    ops::scale(shard, size());
    return {};
  }
  Work all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive) override {
    for (const Part& part : receive) {
      EXPECT_EQ(part.count, send[0].count) << "messages have the same size";
      copy(in.flat(send[0].first, send[0].count), out.flat(part.first, part.count));
    }
    return {};
  }

 private:
  static void copy(const Tensor& from, Tensor to) { ops::copy(from, to); }
};

struct Case {
  const char* name;
  int ep = 1, tp = 1;
  TokenDispatcherType dispatcher = TokenDispatcherType::AllToAll;
  std::function<void(MoeConfig&)> change = [](MoeConfig&) {};
};

std::vector<Case> cases() {
  if (!test::built_with_cuda()) return {};
  constexpr auto kGather = TokenDispatcherType::AllGather;
  return {
      {"one_rank"},
      {"ep2", 2},
      {"etp2", 1, 2},
      {"ep2_etp2", 2, 2},
      {"gather_ep2", 2, 1, kGather},
      {"gather_ep2_etp2", 2, 2, kGather},
      {"by_position", 1, 1, {}, [](MoeConfig& moe) { moe.token_drop_policy = TokenDropPolicy::Position; }},
      {"balanced",
       1,
       1,
       {},
       [](MoeConfig& moe) {
         moe.router_score_function = RouterScore::Sigmoid, moe.router_enable_expert_bias = true;
         moe.router_load_balancing_type =
             OneOrList(std::vector{LoadBalancing::AuxLoss, LoadBalancing::SeqAuxLoss, LoadBalancing::GlobalAuxLoss});
         moe.aux_loss_coeff = OneOrList(std::vector{0.5, 0.25, 1.5}), moe.z_loss_coeff = 0.3;
       }},
      {"jitter_forced",
       1,
       1,
       {},
       [](MoeConfig& moe) { moe.input_jitter_eps = 0.1, moe.router_force_load_balancing = true; }},
      {"shared_latent",
       1,
       1,
       {},
       [](MoeConfig& moe) {
         moe.shared_expert_intermediate_size = 16, moe.shared_expert_gate = true, moe.latent_size = 20;
       }},
      {"weighted_inputs", 2, 1, {}, [](MoeConfig& moe) { moe.router_topk = 1, moe.apply_probs_on_input = true; }},
  };
}

/// Layer with random weights on a GPU, and the input of its passes.
class PaddedExpertsTest : public testing::TestWithParam<Case> {
 protected:
  static constexpr i64 kBatch = 2;

  void SetUp() override {
    if (!test::why_no_gpu().empty()) GTEST_SKIP() << test::why_no_gpu();
    device_ = test::make_gpu();
    ModelConfig config = test::tiny_llama();
    config.add_mlp_bias = true;
    config.moe.num_experts = 4, config.moe.ffn_hidden_size = 24;
    config.moe.expert_capacity_factor = 0.75, config.moe.pad_expert_input_to_capacity = true;
    GetParam().change(config.moe);
    make_layer(config);
  }

  void make_layer(const ModelConfig& config) {
    layer_ = nullptr, context_ = nullptr;
    config_ = config;
    exchange_ = std::make_unique<EchoCommunicator>(GetParam().ep * GetParam().tp);
    context_ = std::make_unique<ModelContext>(
        ModelContext{.config = config_,
                     .dtype = DType::F32,
                     .recompute = {},
                     .device = *device_,
                     .tp = *self_,
                     .experts = {.dispatcher = GetParam().dispatcher,
                                 .ep = GetParam().ep,
                                 .tp = GetParam().tp,
                                 .exchange = exchange_->size() > 1 ? exchange_.get() : nullptr}});
    layer_ = std::make_unique<MoELayer>("mlp", 0, *block_spec(config_, 0).moe(), *context_);
    layer_->router().allocate_state();
    u64 seed = 1;
    layer_->visit([&](Param& param) {
      param.value = test::random_tensor(param.box.shape, DType::F32, *device_, seed++, 0.1, 0);
      param.main_grad = Tensor::zeros(param.box.shape, DType::F32, *device_);
    });
    x_ = test::random_tensor({config_.seq_length, kBatch, config_.hidden_size}, DType::F32, *device_, 100, 1, 0);
  }

  /// Runs forward and backward, and returns y and dx.
  std::pair<Tensor, Tensor> pass() {
    MicrobatchContext microbatch;
    microbatch.samples = {3, 8};
    Tensor y = layer_->forward(x_, microbatch);
    Tensor dx = layer_->backward(y, microbatch);
    return {std::move(y), std::move(dx)};
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  std::unique_ptr<EchoCommunicator> exchange_;
  ModelConfig config_;
  std::unique_ptr<ModelContext> context_;
  std::unique_ptr<MoELayer> layer_;
  Tensor x_;
};

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PaddedExpertsTest);
INSTANTIATE_TEST_SUITE_P(Layers, PaddedExpertsTest, testing::ValuesIn(cases()),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });

/// A recording throws at any call that waits for the GPU, reads its values, or writes values of the host.
TEST_P(PaddedExpertsTest, PassesAreRecorded) {
  Tensor y = Tensor::like(x_), dx = Tensor::like(x_);
  MemoryArena arena(*device_);
  const auto run = [&] {
    const auto [of_pass, d_of_pass] = pass();
    ops::copy(of_pass, y);
    ops::copy(d_of_pass, dx);
  };
  pass();  // the first pass overwrites gradients, others add to them
  layer_->router().clear_counts();
  {
    const MemoryArena::Scope scope(arena, MemoryArena::Growth::Allowed);
    run();
  }
  const test::Numbers expected_y = test::to_doubles(y), expected_dx = test::to_doubles(dx);
  const std::vector<double> expected_tally = layer_->router().read_tally().values();
  EXPECT_GT(layer_->router().read_tally().dropped, 0);
  std::unique_ptr<DeviceGraph> graph;
  {
    const MemoryArena::Scope scope(arena, MemoryArena::Growth::Refused);
    graph = record_graph(*device_, run);
  }
  ops::fill_zero(y), ops::fill_zero(dx);
  layer_->router().clear_counts();
  graph->launch();
  EXPECT_EQ(test::to_doubles(y), expected_y);
  EXPECT_EQ(test::to_doubles(dx), expected_dx);
  EXPECT_EQ(layer_->router().read_tally().values(), expected_tally);
}

class UnpaddedExpertsTest : public PaddedExpertsTest {
 protected:
  void make_unpadded_layer() {
    ModelConfig unpadded = config_;
    unpadded.moe.pad_expert_input_to_capacity = false;
    make_layer(unpadded);
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(UnpaddedExpertsTest);
INSTANTIATE_TEST_SUITE_P(Layers, UnpaddedExpertsTest,
                         testing::ValuesIn(test::built_with_cuda()
                                               ? std::vector<Case>{{"one_rank"},
                                                                   {"gather_ep2", 2, 1, TokenDispatcherType::AllGather}}
                                               : std::vector<Case>()),
                         [](const auto& p) { return str(p.param.name, "_cuda"); });

/// The host reads the number of tokens of each expert.
TEST_P(UnpaddedExpertsTest, PassesAreNotRecorded) {
  make_unpadded_layer();
  MemoryArena arena(*device_);
  {
    const MemoryArena::Scope scope(arena, MemoryArena::Growth::Allowed);
    pass();
  }
  const MemoryArena::Scope scope(arena, MemoryArena::Growth::Refused);
  EXPECT_CONTAINS(test::error_with(ExitCode::Internal, [&] { record_graph(*device_, [&] { pass(); }); }), "captur");
}

TEST_P(UnpaddedExpertsTest, ResultsEqualThoseWithPadding) {
  const auto results = [this] {
    const auto [y, dx] = pass();
    return std::array{test::to_doubles(y), test::to_doubles(dx), layer_->router().read_tally().values()};
  };
  const auto padded = results();
  EXPECT_GT(layer_->router().read_tally().dropped, 0);
  make_unpadded_layer();
  EXPECT_EQ(results(), padded);
}

}  // namespace
}  // namespace mcpp::padded_experts_test
