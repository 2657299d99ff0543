// Arguments that Megatron-LM stores in checkpoints, as a configuration.
#include "megatron_cpp/exchange/megatron_args.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "checkpoint/format/pickle_writer.h"
#include "tests/support/errors.h"

namespace mcpp {
namespace {

using test::error_of;

/// Arguments of Megatron-LM as torch.save pickles them.
class MegatronArgsTest : public testing::Test {
 protected:
  /// Returns the configuration of a small GPT with these changes: "name", opcodes of its value, ...
  static Config config_with(const std::vector<std::pair<std::string, PickleWriter>>& changes) {
    std::map<std::string, PickleWriter> values;
    const auto set = [&](const std::string& name, const PickleWriter& value) { values.insert_or_assign(name, value); };
    for (const auto& [name, value] : std::map<std::string, i64>{{"num_layers", 2},
                                                                {"hidden_size", 64},
                                                                {"num_attention_heads", 4},
                                                                {"ffn_hidden_size", 256},
                                                                {"seq_length", 32},
                                                                {"max_position_embeddings", 32},
                                                                {"padded_vocab_size", 128},
                                                                {"global_batch_size", 8},
                                                                {"micro_batch_size", 2},
                                                                {"train_iters", 10}})
      set(name, PickleWriter().integer(value));
    set("group_query_attention", PickleWriter().boolean(false));
    set("num_query_groups", PickleWriter().integer(1));
    set("normalization", PickleWriter().text("LayerNorm"));
    set("position_embedding_type", PickleWriter().text("learned_absolute"));
    set("bias_gelu_fusion", PickleWriter().boolean(true));
    set("num_experts", PickleWriter().none());
    for (const auto& [name, value] : changes) set(name, value);
    std::string text = PickleWriter().object("argparse", "Namespace").begin_dict().finish();
    text.pop_back();
    for (const auto& [name, value] : values) {
      const std::string key = PickleWriter().text(name).finish(), opcodes = value.finish();
      text += key.substr(2, key.size() - 3) + opcodes.substr(2, opcodes.size() - 3);
    }
    text += "ub.";
    const Pickle pickle(std::as_bytes(std::span(text)), "args");
    return config_of_megatron_args(pickle.root(), "common.pt");
  }
  static std::string error_with(const std::string& name, const PickleWriter& value) {
    return error_of([&] { config_with({{name, value}}); });
  }
};

TEST_F(MegatronArgsTest, DescribeModelAndTraining) {
  const Config config = config_with({{"lr", PickleWriter().number(3e-4)}, {"bf16", PickleWriter().boolean(true)}});
  EXPECT_EQ(config.model.hidden_size, 64);
  EXPECT_EQ(config.model.vocab_size, 128);
  EXPECT_EQ(config.model.num_query_groups, ModelConfig{}.num_query_groups);
  EXPECT_EQ(config.model.activation_func, ActivationFunction::Gelu);
  EXPECT_EQ(config.model.position_embedding_type, PositionEmbedding::LearnedAbsolute);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(config.training.precision, Precision::Bf16);
  EXPECT_EQ(config.training.global_batch_size, 8);
}

TEST_F(MegatronArgsTest, DistinguishActivations) {
  const auto activation = [](const std::string& name, bool value) {
    return config_with({{name, PickleWriter().boolean(value)}}).model.activation_func;
  };
  EXPECT_EQ(activation("swiglu", true), ActivationFunction::SwiGLU);
  EXPECT_EQ(activation("squared_relu", true), ActivationFunction::SquaredReLU);
  EXPECT_EQ(activation("bias_gelu_fusion", false), ActivationFunction::GeluErf);
}

TEST_F(MegatronArgsTest, RejectUnsupportedOptions) {
  EXPECT_CONTAINS(error_with("num_experts", PickleWriter().integer(8)), "common.pt: args.num_experts is set");
  EXPECT_CONTAINS(error_with("multi_latent_attention", PickleWriter().boolean(true)), "args.multi_latent_attention");
  EXPECT_CONTAINS(error_with("optimizer", PickleWriter().text("sgd")), "args.optimizer is sgd; only adam");
  EXPECT_CONTAINS(error_with("padded_vocab_size", PickleWriter().none()), "neither vocab_size nor padded_vocab_size");
  EXPECT_CONTAINS(error_with("normalization", PickleWriter().text("Batch\"Norm")), "normalization");
  EXPECT_CONTAINS(error_with("num_layers", PickleWriter().integer(-1)), "num_layers");
  EXPECT_CONTAINS(error_with("lr", PickleWriter().number(std::nan(""))), "lr");
}

}  // namespace
}  // namespace mcpp
