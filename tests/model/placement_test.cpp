// Invalid compositions of modules and placements of parameters are rejected when a model is built.
#include <gtest/gtest.h>

#include "comm/local.h"
#include "model/layers/norm.h"
#include "model/layers/recompute.h"
#include "parallel/tp/linear.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_model.h"

namespace mcpp {
namespace {

using test::TinyModel;
using A = ActivationPlacement;

ModelConfig model() {
  ModelConfig config = test::tiny_llama();
  config.num_query_groups = 1;  // ranks share keys and values
  config.num_layers = 2;
  config.seq_length = 12;
  config.add_bias_linear = config.add_qkv_bias = true;
  return config;
}

/// Calls f(context) as one of two tensor-parallel ranks.
void on_two_ranks(bool sequence_parallel, const std::function<void(const ModelContext&)>& f) {
  run_local_ranks(2, [&](Communicator& tp, int) {
    CpuDevice device;
    f({.config = model(), .recompute = {}, .device = device, .tp = tp, .sequence_parallel = sequence_parallel});
  });
}

/// Layer that omits the sum over ranks.
class LayerWithoutSum final : public Module {
 public:
  Tensor forward(const Tensor& x, MicrobatchContext&) override { return x; }
  Tensor backward(const Tensor& dy, MicrobatchContext&) override { return dy; }
  ActivationPlacement output_placement(ActivationPlacement) const override { return A::Partial; }
  void visit(const ParamVisitor&) override {}
};

template <class... Modules>
std::string placement_error(A x, std::unique_ptr<Modules>... modules) {
  std::vector<std::unique_ptr<Module>> list;
  (list.push_back(std::move(modules)), ...);
  const RecomputedLayers chain(std::move(list));
  return test::error_of([&] { chain.output_placement(x); });
}

std::unique_ptr<ColumnParallelLinear> column(const ModelContext& context, bool sequence_parallel) {
  return std::make_unique<ColumnParallelLinear>("fc1", 32, Shape{64}, 0, context.tp,
                                                LinearOptions{.sequence_parallel = sequence_parallel});
}
std::unique_ptr<RowParallelLinear> row(const ModelContext& context, bool sequence_parallel) {
  return std::make_unique<RowParallelLinear>("fc2", 64, 32, context.tp,
                                             LinearOptions{.sequence_parallel = sequence_parallel});
}

TEST(ModulePlacementTest, ModulesAcceptPlacementOfPreviousOutput) {
  for (const bool sequence_parallel : {false, true}) {
    on_two_ranks(sequence_parallel, [&](const ModelContext& context) {
      const auto norm = [&] { return std::make_unique<Norm>("norm", context); };
      const A stream = context.stream();
      EXPECT_EQ(stream, sequence_parallel ? A::SequenceSharded : A::Replicated);
      EXPECT_EQ(
          placement_error(stream, norm(), column(context, sequence_parallel), row(context, sequence_parallel), norm()),
          "");
      EXPECT_CONTAINS(placement_error(stream, std::make_unique<LayerWithoutSum>(), norm()),
                      "norm.weight expects full rows, but receives activations that are partial");
      EXPECT_CONTAINS(
          placement_error(stream, norm(), std::make_unique<LayerWithoutSum>(), column(context, sequence_parallel)),
          "fc1.weight expects activations that are ");
      EXPECT_CONTAINS(placement_error(stream, column(context, sequence_parallel), norm()), "are column-sharded");
      EXPECT_CONTAINS(placement_error(stream, row(context, sequence_parallel)),
                      "fc2.weight expects activations that are column-sharded");
    });
  }
}

TEST(ModulePlacementTest, LayersMustAgreeOnSequenceParallelism) {
  on_two_ranks(true, [](const ModelContext& context) {
    EXPECT_CONTAINS(placement_error(A::SequenceSharded, column(context, false)),
                    "that are replicated, but receives activations that are sequence-sharded");
    EXPECT_CONTAINS(
        placement_error(A::SequenceSharded, column(context, true), row(context, false), column(context, true)),
        "fc1.weight expects activations that are sequence-sharded, but receives activations that are replicated");
    const auto norm = std::make_unique<Norm>("norm", context);
    EXPECT_CONTAINS(test::error_of([&] { norm->output_placement(A::Replicated); }),
                    "norm.weight is placed Partial along tp, but is used for activations that are replicated");
  });
  on_two_ranks(false, [](const ModelContext& context) {
    const auto norm = std::make_unique<Norm>("norm", context);
    EXPECT_CONTAINS(test::error_of([&] { norm->output_placement(A::SequenceSharded); }), "makes its gradient Partial");
  });
}

/// Builds the model, changes the placement along tp of the last parameter of this name, and checks the model again.
std::string placement_error_with(const ModelContext& context, const std::string& name, const AxisPlacement& tp) {
  GPTModel gpt(context);
  Param* found = nullptr;
  gpt.visit([&](Param& param, int) {
    if (param.name == name) found = &param;
  });
  MCPP_CHECK(found, "no parameter ", name);
  found->placement.tp = tp;
  return test::error_of([&] { gpt.check_placements(); });
}

TEST(ModulePlacementTest, ParameterPlacementsMatchTheirUse) {
  const AxisPlacement replicate{Spread::Replicate}, partial{Spread::Partial}, shard{Spread::Shard};
  const std::string attention = "decoder.layers.1.self_attention.", mlp = "decoder.layers.1.mlp.";
  for (const bool sequence_parallel : {false, true}) {
    on_two_ranks(sequence_parallel, [&](const ModelContext& context) {
      const AxisPlacement &right = sequence_parallel ? partial : replicate,
                          &wrong = sequence_parallel ? replicate : partial;
      for (const char* norm : {"decoder.layers.1.input_layernorm.weight", "decoder.final_layernorm.weight"}) {
        EXPECT_EQ(placement_error_with(context, norm, right), "");
        EXPECT_CONTAINS(placement_error_with(context, norm, wrong), norm);
        EXPECT_CONTAINS(placement_error_with(context, norm, shard), norm);  // this parameter must also be unsharded
      }
      EXPECT_CONTAINS(placement_error_with(context, mlp + "linear_fc2.bias", partial),
                      "linear_fc2.bias is placed Partial");
      EXPECT_CONTAINS(placement_error_with(context, mlp + "linear_fc2.bias", shard),
                      "make up 64 elements, but it has 32");
      EXPECT_CONTAINS(placement_error_with(context, mlp + "linear_fc1.weight", replicate),
                      "linear_fc1.weight is placed Replicate");
      // The last parameter of this name: keys and values, which both ranks hold and use with different query heads.
      EXPECT_EQ(placement_error_with(context, attention + "linear_qkv.weight", partial), "");
      EXPECT_CONTAINS(
          placement_error_with(context, attention + "linear_qkv.weight", replicate),
          "linear_qkv.weight is placed Replicate along tp, but is used for activations that are column-sharded");
      EXPECT_CONTAINS(placement_error_with(context, "embedding.word_embeddings.weight", partial),
                      "word_embeddings.weight");
    });
  }
}

/// Tests a stage with only the embedding or the output in a pipeline that has both on one rank, and vice versa.
TEST(ModulePlacementTest, TiedEmbeddingsFollowPipelinePlacement) {
  const auto self = make_self_communicator();
  CpuDevice device;
  ModelContext context{.config = test::tiny_gpt2(), .recompute = {}, .device = device, .tp = *self};
  const StageContents last{.first_layer = 2, .end_layer = 3, .has_embedding = false, .has_output = true};
  EXPECT_CONTAINS(test::error_of([&] { GPTModel(context, last, nullptr); }), "not on the same stage as the embedding");
  context.final_norm_rank = 1;
  EXPECT_CONTAINS(test::error_of([&] { GPTModel gpt(context); }),
                  "on the same stage as the embedding that it is tied to");
  GPTModel stage(context, last, nullptr);
  int held = 0;
  stage.visit([&](Param& param, int) {
    if (param.placement.pp == AxisPlacement{Spread::Partial, Holders{.first = 0, .count = 2, .stride = 1}}) ++held;
  });
  EXPECT_EQ(held, 1);
}

/// The stages of the final norm and of the output divide the parameters, and the former has a copy of the embeddings.
TEST(ModulePlacementTest, PredictionStageHoldsCopyOfWordEmbeddings) {
  const auto self = make_self_communicator();
  CpuDevice device;
  ModelContext context{.config = test::tiny_llama(), .recompute = {}, .device = device, .tp = *self};
  context.config.mtp_num_layers = 1;
  const StageContents prediction{
      .first_layer = 2, .end_layer = 2, .has_embedding = false, .has_output = false, .has_final_norm = true},
      output{.first_layer = 2, .end_layer = 2, .has_embedding = false, .has_output = true, .has_final_norm = false};
  const auto names = [&](const StageContents& stage) {
    std::vector<std::string> list;
    GPTModel(context, stage, nullptr).visit([&](Param& param, int) {
      list.push_back(param.name);
      if (param.name == "embedding.word_embeddings.weight") {
        EXPECT_EQ(param.placement.pp, (AxisPlacement{Spread::Partial, Holders{.first = 0, .count = 2, .stride = 3}}));
      }
    });
    return list;
  };
  context.config.untie_embeddings_and_output_weights = true;
  context.final_norm_rank = 3;
  EXPECT_EQ(names(output), std::vector<std::string>{"output_layer.weight"});
  const std::vector<std::string> all = names(prediction);
  ASSERT_GT(all.size(), 3u);
  EXPECT_EQ(all[0], "decoder.final_layernorm.weight");
  EXPECT_EQ(all[1], "embedding.word_embeddings.weight");
  for (std::size_t i = 2; i < all.size(); ++i) EXPECT_TRUE(all[i].starts_with("mtp.layers.0.")) << all[i];
  context.config.untie_embeddings_and_output_weights = false;
  EXPECT_CONTAINS(test::error_of([&] { GPTModel(context, prediction, nullptr); }), "tied embeddings");
}

}  // namespace
}  // namespace mcpp
