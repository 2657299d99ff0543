// Records of blocks on the meta device, compared with shapes and volumes derived by hand.
#include "model/block_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/strings.h"

namespace mcpp::block_trace_test {
namespace {

/// Returns a model with grouped queries and a gated MLP: 8 query heads of 16 channels, 4 key heads.
ModelConfig make_config() {
  ModelConfig c;
  c.num_layers = 2, c.hidden_size = 64, c.ffn_hidden_size = 96, c.seq_length = 32, c.vocab_size = 100;
  c.num_attention_heads = 8, c.num_query_groups = 4, c.kv_channels = 16;
  c.activation_func = ActivationFunction::SwiGLU, c.normalization = Normalization::RMSNorm;
  c.position_embedding_type = PositionEmbedding::Rope, c.add_bias_linear = false;
  return c;
}

std::vector<std::string> matmuls(const OpTrace& pass) {
  std::vector<std::string> list;
  for (const OpRecord& op : pass.ops)
    if (op.kind == OpKind::Matmul)
      list.push_back(str(short_weight_name(op.weight), op.is_weight_gradient ? " wgrad " : " ", op.matmul.m, " ",
                         op.matmul.n, " ", op.matmul.k, " ", op.matmul.batch));
  return list;
}

double sum(const OpTrace& pass, OpKind kind, double OpRecord::*member) {
  double total = 0;
  for (const OpRecord& op : pass.ops) total += op.kind == kind ? op.*member : 0;
  return total;
}

std::vector<std::string> messages(const OpTrace& pass) {
  std::vector<std::string> list;
  for (const MessageRecord& message : pass.messages)
    list.push_back(str(message.group, " ", static_cast<int>(message.kind), " ", message.bytes));
  return list;
}

TEST(BlockTraceTest, ListsMatmulsOfDenseBlock) {
  const ModelConfig config = make_config();
  BlockTraces traces(config);
  const BlockTrace& trace = traces.get({.micro_batch_size = 3, .tensor_parallel = 2}, block_spec(config, 0));
  // 96 tokens; a rank has 4 query heads, 2 key heads and half of the MLP.
  EXPECT_THAT(matmuls(trace.forward),
              testing::ElementsAre("qkv 96 128 64 1", "proj 96 64 64 1", "fc1 96 96 64 1", "fc2 96 64 48 1"));
  EXPECT_THAT(matmuls(trace.backward),
              testing::UnorderedElementsAre("qkv 96 64 128 1", "proj 96 64 64 1", "fc1 96 64 96 1", "fc2 96 48 64 1",
                                            "qkv wgrad 128 64 96 1", "proj wgrad 64 64 96 1", "fc1 wgrad 96 64 96 1",
                                            "fc2 wgrad 64 48 96 1"));
  i64 weights = 0;
  for (const ParamTrace& param : trace.params) weights += numel(param.shape);
  EXPECT_EQ(weights, 64 * (128 + 64 + 96 + 48) + 2 * 64);
}

TEST(BlockTraceTest, ElementwiseOpsCoverTheirTensors) {
  const ModelConfig config = make_config();
  BlockTraces traces(config);
  const BlockTrace& trace = traces.get({.micro_batch_size = 3}, block_spec(config, 0));
  const double tokens = 96;
  EXPECT_EQ(sum(trace.forward, OpKind::Norm, &OpRecord::elements), 2 * tokens * 64);
  EXPECT_EQ(sum(trace.forward, OpKind::Residual, &OpRecord::elements), 2 * tokens * 64);
  EXPECT_EQ(sum(trace.forward, OpKind::Rotary, &OpRecord::elements), tokens * (128 + 64));
  EXPECT_EQ(sum(trace.forward, OpKind::Activation, &OpRecord::elements), tokens * 3 * 96);
  EXPECT_EQ(sum(trace.backward, OpKind::Activation, &OpRecord::elements), tokens * 5 * 96);
  EXPECT_EQ(sum(trace.forward, OpKind::Memory, &OpRecord::bytes), 0);
}

TEST(BlockTraceTest, PartsAddUpToBlock) {
  const ModelConfig config = make_config();
  const BlockSpec block = block_spec(config, 0);
  BlockTraces traces(config);
  const auto flops = [&](const BlockSpec& part) {
    return sum(traces.get({}, part).forward, OpKind::Matmul, &OpRecord::flops);
  };
  EXPECT_EQ(flops(mixer_of(block)) + flops(feed_forward_of(block)), flops(block));
  EXPECT_GT(flops(mixer_of(block)), 0);
}

// Keys of other ranks arrive in chunks, whose pairs add up to the rank's part of all pairs.
TEST(BlockTraceTest, ContextParallelRanksShareAttention) {
  ModelConfig config = make_config();
  for (const i64 window : {0, 7}) {
    if (window > 0) config.window_size = {window - 1, 0};
    BlockTraces traces(config);
    const BlockSpec block = block_spec(config, 0);
    const double whole = sum(traces.get({}, block).forward, OpKind::Attention, &OpRecord::flops);
    const double w = window > 0 ? static_cast<double>(window) : 32;
    EXPECT_DOUBLE_EQ(whole, 4 * 128 * (32 * w - w * w / 2));
    for (const CpCommType type : {CpCommType::P2p, CpCommType::AllGather, CpCommType::A2a}) {
      const ActivationSetup setup{
          .partition = {.heads = type == CpCommType::A2a ? 4 : 1, .rings = type == CpCommType::A2a ? 1 : 4},
          .cp_comm_type = type};
      const BlockTrace& trace = traces.get(setup, block);
      if (window == 0) {
        EXPECT_DOUBLE_EQ(sum(trace.forward, OpKind::Attention, &OpRecord::flops), whole / 4);
      }
      double share = 0;
      for (const OpRecord& op : trace.forward.ops) share += op.attention.share;
      EXPECT_DOUBLE_EQ(share, 1) << enum_name(type);
      EXPECT_FALSE(trace.forward.messages.empty());
    }
  }
}

TEST(BlockTraceTest, MessagesMatchTensorParallelTable) {
  const ModelConfig config = make_config();
  BlockTraces traces(config);
  const BlockSpec mlp = feed_forward_of(block_spec(config, 0));
  const auto name = [](MessageKind kind) { return str("tp ", static_cast<int>(kind), " ", 32 * 64 * 4); };
  const BlockTrace& plain = traces.get({.tensor_parallel = 2}, mlp);
  EXPECT_THAT(messages(plain.forward), testing::ElementsAre(name(MessageKind::AllReduce)));
  EXPECT_THAT(messages(plain.backward), testing::ElementsAre(name(MessageKind::AllReduce)));
  const BlockTrace& sequence = traces.get({.tensor_parallel = 2, .sequence_parallel = true}, mlp);
  EXPECT_THAT(messages(sequence.forward),
              testing::ElementsAre(name(MessageKind::AllGather), name(MessageKind::ReduceScatter)));
  EXPECT_THAT(messages(sequence.backward),
              testing::UnorderedElementsAre(name(MessageKind::AllGather), name(MessageKind::AllGather),
                                            name(MessageKind::ReduceScatter)));
}

TEST(BlockTraceTest, BackwardRepeatsRecomputedOps) {
  const ModelConfig config = make_config();
  BlockTraces traces(config);
  const auto repeated = [&](const Recompute& recompute) {
    std::vector<OpKind> kinds;
    for (const OpRecord& op : traces.get({.recompute = recompute}, block_spec(config, 0)).backward.ops)
      if (!op.is_backward && op.kind != OpKind::Matmul && op.kind != OpKind::Memory) kinds.push_back(op.kind);
    return kinds;
  };
  using enum Recompute::Granularity;
  EXPECT_THAT(repeated({}), testing::IsEmpty());
  EXPECT_THAT(repeated({.granularity = Selective, .core_attn = true}), testing::ElementsAre(OpKind::Attention));
  EXPECT_THAT(repeated({.granularity = Selective, .layernorm = true, .mlp_act = true}),
              testing::UnorderedElementsAre(OpKind::Norm, OpKind::Norm, OpKind::Activation));
  EXPECT_THAT(repeated({.granularity = Full}), testing::IsEmpty()) << "recomputed by the stage, not by the layer";
}

TEST(BlockTraceTest, ImbalanceAddsRowsToExpertsOfRank) {
  ModelConfig config = make_config();
  config.moe.num_experts = 8, config.moe.router_topk = 2, config.moe.layer_freq = {1};
  BlockTraces traces(config);
  const auto trace = [&](double imbalance) -> const BlockTrace& {
    return traces.get({.micro_batch_size = 8, .expert_parallel = 4, .expert_imbalance = imbalance},
                      block_spec(config, 0));
  };
  const auto rows = [&](double imbalance) {
    const std::vector<OpRecord>& ops = trace(imbalance).forward.ops;
    const auto experts =
        std::ranges::find(ops, "experts.fc1", [](const OpRecord& op) { return short_weight_name(op.weight); });
    EXPECT_NE(experts, ops.end());
    EXPECT_EQ(experts->matmul.batch, 2);
    return experts->matmul.m;
  };
  // 256 tokens on each of 4 ranks, twice, over 8 experts.
  EXPECT_EQ(rows(1), 256);
  EXPECT_EQ(rows(1.5), 384);
  const auto sent = [&](double imbalance) {
    double bytes = 0;
    for (const MessageRecord& message : trace(imbalance).forward.messages)
      if (message.kind == MessageKind::AllToAll) bytes += message.bytes;
    return bytes;
  };
  EXPECT_EQ(sent(1), 2 * 512 * 64 * 4);
  EXPECT_EQ(sent(1.5), 1.5 * sent(1));
}

/// Passes yield during the first hop of tokens and the last hop of sums, but not during exchanges of choices, weights
/// and their gradients.
TEST(BlockTraceTest, MarksExchangesDuringWhichPassesYield) {
  ModelConfig config = make_config();
  config.moe.num_experts = 8, config.moe.router_topk = 2, config.moe.layer_freq = {1};
  BlockTraces traces(config);
  using Yields = std::vector<std::string>;
  const auto yields = [&](const ActivationSetup& setup) {
    const BlockTrace& trace = traces.get(setup, feed_forward_of(block_spec(config, 0)));
    std::array<Yields, 2> list;
    for (const auto& [pass, names] : {std::pair(&trace.forward, &list[0]), std::pair(&trace.backward, &list[1])})
      for (const MessageRecord& message : pass->messages)
        names->push_back(message.group + (message.yields ? " yields" : ""));
    return list;
  };
  ActivationSetup setup{.expert_parallel = 4, .overlap_moe_expert_parallel_comm = true};
  const std::string hop = kExchangeGroup, first = hop + " yields", second = kNodeExchangeGroup;
  const std::string& choices = hop;
  EXPECT_EQ(yields(setup), (std::array{Yields{choices, first, first}, Yields{first, first}}));
  setup.dispatcher = TokenDispatcherType::Hierarchical;
  setup.dispatch_node_ranks = 2;
  EXPECT_EQ(yields(setup), (std::array{Yields{choices, first, second, hop, second, second, first},
                                       Yields{first, second, second, hop, second, first}}));
  setup.dispatch_node_ranks = 4;
  const std::string only = second + " yields";
  EXPECT_EQ(yields(setup), (std::array{Yields{choices, only, second, only}, Yields{only, second, only}}));
  setup.overlap_moe_expert_parallel_comm = false;
  EXPECT_EQ(yields(setup), (std::array{Yields{choices, second, second, second}, Yields{second, second, second}}));
}

/// Tokens of 64 elements take 68 bytes in fp8 and 128 in bf16.
TEST(BlockTraceTest, SendsTokensOfExpertsInFp8) {
  ModelConfig config = make_config();
  config.moe.num_experts = 8, config.moe.router_topk = 2, config.moe.layer_freq = {1};
  BlockTraces traces(config);
  const auto sent = [&](bool dispatches) {
    ActivationSetup setup{.dtype = DType::BF16, .micro_batch_size = 8, .expert_parallel = 4};
    PassRecipes recipe = PassRecipes::of(GemmRecipe::Mxfp8);
    recipe.wgrad = GemmRecipe::Bf16;
    setup.fp8 = {.modules = {{{"*.experts.*"}, recipe}}, .moe_fp8_dispatch = dispatches};
    const BlockTrace& trace = traces.get(setup, block_spec(config, 0));
    double bytes = 0;
    for (const OpTrace* pass : {&trace.forward, &trace.backward})
      for (const MessageRecord& message : pass->messages)
        if (message.kind == MessageKind::AllToAll) bytes += message.bytes;
    return bytes;
  };
  EXPECT_EQ(sent(false), 512 * 4 * 128);
  EXPECT_EQ(sent(true), 512 * (2 * 128 + 2 * 68));
}

TEST(BlockTraceTest, RecordsOutput) {
  const ModelConfig config = make_config();
  BlockTraces traces(config);
  const BlockTrace& trace = traces.output({.micro_batch_size = 3, .tensor_parallel = 2}, {});  // 128 padded words
  EXPECT_THAT(matmuls(trace.forward), testing::ElementsAre("output 96 64 64 1"));
  EXPECT_THAT(matmuls(trace.backward), testing::UnorderedElementsAre("output 96 64 64 1", "output wgrad 64 64 96 1"));
  EXPECT_EQ(sum(trace.forward, OpKind::Norm, &OpRecord::elements), 96 * 64);
  EXPECT_EQ(sum(trace.forward, OpKind::Loss, &OpRecord::elements), 2 * 96 * 64) << "statistics and gradient";
}

TEST(BlockTraceTest, Fp8GemmsRoundTheirOperands) {
  const ModelConfig config = make_config();
  BlockTraces traces(config);
  const BlockTrace& trace =
      traces.get({.dtype = DType::BF16, .fp8 = {.first = 0, .end = 1}}, feed_forward_of(block_spec(config, 0)));
  EXPECT_TRUE(std::ranges::all_of(trace.forward.ops, [](const OpRecord& op) {
    return op.kind != OpKind::Matmul || op.recipe == GemmRecipe::Tensorwise;
  }));
  EXPECT_EQ(sum(trace.forward, OpKind::Quantize, &OpRecord::elements), 32 * (64 + 96) + 64 * 3 * 96);
  EXPECT_EQ(sum(trace.backward, OpKind::Quantize, &OpRecord::elements), 32 * (64 + 2 * 96));
}

}  // namespace
}  // namespace mcpp::block_trace_test
