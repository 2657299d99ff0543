// Configurations and weights of model type nemotron_h.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/huggingface/huggingface_config.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "model/config/block_spec.h"
#include "tests/support/build.h"
#include "tests/support/errors.h"
#include "tests/support/scratch_folder.h"

namespace mcpp::nemotron_test {
namespace {

using test::error_of;
using Json = nlohmann::json;
using Change = std::function<void(Json&)>;

Path golden(const std::string& name) {
  return test::source_folder() / "tests/golden/families" / name;
}
Json json_of(
    const std::string& name, const Change& change = [](Json&) {}) {
  Json json = Json::parse(read_text_file(golden(name) / "config.json"));
  change(json);
  return json;
}
ModelConfig parse(
    const std::string& name, const Change& change = [](Json&) {}) {
  return parse_huggingface_config(json_of(name, change).dump(), "config.json");
}
std::string error(const std::string& name, const Change& change) {
  return error_of([&] { parse(name, change); });
}

TEST(NemotronConfigTest, ReadsLayersAndExperts) {
  const ModelConfig model = parse("nemotron_h_moe");
  EXPECT_EQ(model.hybrid_layer_pattern, "ME*E-");
  EXPECT_EQ(model.num_layers, 5);
  EXPECT_EQ(model.position_embedding_type, PositionEmbedding::None);
  EXPECT_EQ(model.activation_func, ActivationFunction::SquaredReLU);
  EXPECT_EQ(model.recurrent.mamba_num_groups, 1);
  EXPECT_EQ(model.recurrent.linear_conv_kernel_dim, 3);
  EXPECT_EQ(model.moe.router_score_function, RouterScore::Sigmoid);
  EXPECT_TRUE(model.moe.router_enable_expert_bias);
  EXPECT_EQ(model.moe.router_num_groups, 4);
  EXPECT_EQ(model.moe.shared_expert_intermediate_size, 12);
  EXPECT_EQ(parse("nemotron_h_latent").moe.latent_size, 10);
  EXPECT_EQ(parse("nemotron_h").moe.num_experts, 0);
  EXPECT_TRUE(parse("nemotron_h").mlp_bias());
}

/// Files of other versions of transformers have other names for some keys, and Python's Infinity.
TEST(NemotronConfigTest, ReadsFormsOfEarlierVersions) {
  const ModelConfig model = parse("nemotron_h");
  const Json changed = json_of("nemotron_h", [](Json& j) {
    j.erase("layers_block_type");
    j["hybrid_override_pattern"] = "M-*M-";
    j["num_hidden_layers"] = 5;
    j["attention_head_dim"] = j["head_dim"];
    j["head_dim"] = nullptr;
    j["mamba_n_groups"] = 2;
    j["mamba_d_conv"] = 4;
    j["time_step_limit"] = {0.0, "INFINITE"};
  });
  std::string text = changed.dump();
  const std::string infinite = "\"INFINITE\"";
  text.replace(text.find(infinite), infinite.size(), "Infinity");
  EXPECT_EQ(parse_huggingface_config(text, "config.json").hybrid_layer_pattern, model.hybrid_layer_pattern);
  EXPECT_EQ(parse_huggingface_config(text, "config.json").head_dim(), model.head_dim());
  EXPECT_EQ(parse("nemotron_h",
                  [](Json& j) {
                    j["layers_block_type"] = {"mamba", "mlp", "attention", "moe", "linear_attention"};
                    j["mlp_bias"] = false;
                  })
                .hybrid_layer_pattern,
            "M-*EM");
}

TEST(NemotronConfigTest, RejectsUnsupportedKeysByName) {
  const auto expect_error = [](const char* key, const Json& value, const std::string& expected) {
    EXPECT_CONTAINS(error("nemotron_h_moe", [&](Json& j) { j[key] = value; }), expected);
  };
  EXPECT_EQ(error("nemotron_h_moe", [](Json&) {}), "");
  for (const char* key :
       {"attention_bias", "residual_in_fp32", "use_bias", "mamba_proj_bias", "mlp_bias", "tie_word_embeddings"})
    expect_error(key, true, str("'", key, "' is true, which is not supported"));
  expect_error("use_conv_bias", false, "'use_conv_bias' is false");
  expect_error("mlp_hidden_act", "silu", "'mlp_hidden_act' is silu, which is not supported; allowed: relu2");
  expect_error("mamba_hidden_act", "relu", "'mamba_hidden_act' is relu");
  expect_error("sliding_window", 8, "'sliding_window' is set");
  expect_error("time_step_limit", {0.0, 0.1},
               "'time_step_limit' is [0.0,0.1], which is not supported; allowed: [0, Inf");
  expect_error("time_step_limit", 7, "'time_step_limit'");
  expect_error("num_hidden_layers", 4, "'num_hidden_layers' is 4, which is not supported; allowed: the 5 layers");
  expect_error("layers_block_type", {"moe", "rnn"}, "'layers_block_type' is \"rnn\"");
  expect_error("layers_block_type", Json::array(), "'layers_block_type' is empty");
  expect_error("moe_shared_expert_intermediate_size", 0, "'moe_shared_expert_intermediate_size' is 0");
  expect_error("moe_latent_size", 0, "'moe_latent_size' is 0");
  expect_error("norm_topk_prob", false, "'norm_topk_prob' is false");
  expect_error("routed_scaling_factor", 0, "'routed_scaling_factor' is 0");
  expect_error("num_experts_per_tok", 20, "model.moe_router_topk: 20 is more than num_experts = 8");
  expect_error("n_groups", 3, "model.mamba_num_groups: 4 heads cannot be shared evenly by 3 groups");
  EXPECT_CONTAINS(error("nemotron_h_moe", [](Json& j) { j.erase("layers_block_type"); }),
                  "'hybrid_override_pattern' is empty");
  EXPECT_CONTAINS(error("nemotron_h_moe",
                        [](Json& j) {
                          j.erase("layers_block_type");
                          j["hybrid_override_pattern"] = "MGx";
                        }),
                  "'hybrid_override_pattern' is MGx, which is not supported; allowed: the characters M, *, -, E");
}

TEST(NemotronConfigTest, NamesKeysThatItCannotExpress) {
  const auto export_error = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig model = parse("nemotron_h_moe");
    change(model);
    return error_of([&] { exporting_family(model, "nemotron_h"); });
  };
  EXPECT_EQ(exporting_family(parse("nemotron_h_moe")).model_type, "nemotron_h");
  EXPECT_EQ(exporting_family(parse("nemotron_h")).model_type, "nemotron_h");
  EXPECT_EQ(export_error([](ModelConfig& m) { m.moe.aux_loss_coeff = 0.1, m.moe.router_dtype = RouterDType::Fp64; }),
            "");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.hybrid_layer_pattern = "GE*E-"; }),
                  "different values of model.hybrid_layer_pattern");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.hybrid_layer_pattern.clear(); }), "model.hybrid_layer_pattern");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.add_mlp_bias = true; }), "model.add_mlp_bias");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.untie_embeddings_and_output_weights = false; }),
                  "model.untie_embeddings_and_output_weights");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.add_qkv_bias = true; }), "model.add_qkv_bias");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.moe.shared_expert_intermediate_size = 0; }),
                  "model.moe_shared_expert_intermediate_size");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.moe.router_score_function = RouterScore::SqrtSoftplus; }),
                  "model.moe_router_score_function");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.activation_func = ActivationFunction::SwiGLU; }),
                  "model.activation_func");
  EXPECT_CONTAINS(export_error([](ModelConfig& m) { m.position_embedding_type = PositionEmbedding::Rope; }),
                  "model.position_embedding_type");
  EXPECT_CONTAINS(error_of([] { exporting_family(parse("nemotron_h"), "llama"); }), "model.hybrid_layer_pattern");
}

/// Missing, unknown and wrongly shaped tensors are named; those for multi-token prediction are skipped.
TEST(NemotronWeightsTest, NamesTensorsThatDoNotFit) {
  const test::ScratchFolder scratch;
  CpuDevice device;
  const SafetensorsReader reader(golden("nemotron_h_moe"));
  const auto import_with = [&](const std::string& without, const std::string& with, const Shape& shape) {
    const Path copy = scratch.path() / "copy";
    std::filesystem::remove_all(copy);
    std::filesystem::create_directories(copy);
    std::filesystem::copy_file(golden("nemotron_h_moe") / "config.json", copy / "config.json");
    std::vector<SafeSpec> specs;
    for (const SafeTensor& tensor : reader.tensors())
      if (tensor.name != without) specs.push_back({tensor.name, DType::F32, tensor.shape});
    if (!with.empty()) specs.push_back({with, DType::F32, shape});
    write_safetensors(
        copy, specs, [&](std::size_t i) { return Tensor::zeros(specs[i].shape, DType::F32, device); }, i64{1} << 30);
    return import_huggingface(copy, {}, device, /*prediction_layers=*/0).skipped_layers;
  };
  const auto import_error = [&](const std::string& without, const std::string& with, const Shape& shape = {4}) {
    return error_of([&] { import_with(without, with, shape); });
  };
  EXPECT_TRUE(import_with("", "", {}).empty());
  EXPECT_EQ(import_with("", "mtp.layers.0.norm.weight", {4}), std::vector<std::string>{"mtp."});
  for (const char* name : {"backbone.layers.0.mixer.D", "backbone.layers.1.mixer.experts.7.up_proj.weight",
                           "backbone.layers.1.mixer.gate.e_score_correction_bias", "backbone.norm_f.weight"})
    EXPECT_CONTAINS(import_error(name, ""), name);
  const char* conv = "backbone.layers.0.mixer.conv1d.weight";
  EXPECT_CONTAINS(import_error(conv, conv, {34, 1, 4}), str(conv, " has shape [34, 1, 4], but config.json requires"));
  EXPECT_CONTAINS(import_error("", "backbone.layers.0.mixer.in_proj.bias"), "in_proj.bias has no counterpart");
}

}  // namespace
}  // namespace mcpp::nemotron_test
