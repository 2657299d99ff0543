// Layers for multi-token prediction in Hugging Face files: import, export, and invalid files.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "checkpoint/save/writer.h"
#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "model/flops.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/support/build.h"
#include "tests/support/huggingface_models.h"

namespace mcpp {
namespace {

using Strings = std::vector<std::string>;

class PredictionLayersTest : public CheckpointTest {
 protected:
  static Path golden(const std::string& model) { return test::source_folder() / "tests/golden/mtp" / model; }

  /// Copies a golden model without the tensors `removed`, with the tensors `added`, and with the changed `keys` in
  /// config.json.
  Path changed(const std::string& model, const std::set<std::string>& removed,
               const std::vector<test::ChangedTensor>& added = {},
               const nlohmann::json& keys = nlohmann::json::object()) {
    const Path copy = folder_ / "changed";
    test::copy_model(golden(model), copy, removed, added, device_);
    auto config = nlohmann::json::parse(read_text_file(copy / "config.json"));
    config.merge_patch(keys);
    write_file_atomic(copy / "config.json", config.dump());
    return copy;
  }
  std::string error_with(const std::string& model, const std::set<std::string>& removed,
                         const std::vector<test::ChangedTensor>& added = {},
                         const nlohmann::json& keys = nlohmann::json::object(), std::optional<i64> count = {}) {
    return error_of([&] { import_huggingface(changed(model, removed, added, keys), {}, device_, count); });
  }
  static Strings names_of(ImportedModel& imported) {
    Strings names;
    for (const ShardSpec& spec : imported.weights->shards())
      if (spec.name.starts_with("model/mtp.")) names.push_back(spec.name);
    return names;
  }
};

TEST_F(PredictionLayersTest, ExportReproducesImportedFile) {
  for (const auto& [name, layers, branches] :
       {std::tuple("deepseek_v3", 2, ""), std::tuple("glm4_moe_lite", 1, "*E"), std::tuple("qwen3_next", 1, "*E"),
        std::tuple("qwen3_next_dense", 1, "*-"), std::tuple("qwen3_5", 1, "*-"), std::tuple("qwen3_5_moe", 1, ""),
        std::tuple("nemotron_h", 2, "*E")}) {
    SCOPED_TRACE(name);
    ImportedModel imported = import_huggingface(golden(name), {}, device_);
    EXPECT_EQ(imported.model.mtp_num_layers, layers);
    EXPECT_EQ(imported.model.mtp_hybrid_layer_pattern, branches);
    EXPECT_TRUE(imported.skipped_layers.empty());
    EXPECT_EQ(imported.absent_layers, 0);
    const Path checkpoint = save_checkpoint(folder_, {.iteration = 0}, *imported.weights, *self_, log_);
    CheckpointReader reader(checkpoint);
    const auto original = nlohmann::json::parse(read_text_file(golden(name) / "config.json"));
    export_huggingface(folder_ / name, imported.model, reader, {.model_type = original["model_type"]});
    EXPECT_TRUE(read_text_file(folder_ / name / "model.safetensors") ==
                read_text_file(golden(name) / "model.safetensors"));
    const auto exported = nlohmann::json::parse(read_text_file(folder_ / name / "config.json"));
    for (const char* key : {"num_nextn_predict_layers", "mtp_num_hidden_layers"}) {
      if (original.contains(key)) {
        EXPECT_EQ(exported[key], original[key]);
      }
    }
    const ImportedModel again = import_huggingface(folder_ / name, {}, device_);
    EXPECT_EQ(again.model.mtp_num_layers, layers);
    EXPECT_EQ(again.model.mtp_hybrid_layer_pattern, branches);
  }
}

/// The first half of the columns of the projection multiplies the embedding, as in transformers and vLLM.
TEST_F(PredictionLayersTest, MapsNormsAndProjection) {
  for (const auto& [model, names] :
       {std::pair("deepseek_v3", Strings{"model.layers.3.enorm", "model.layers.3.hnorm", "model.layers.3.eh_proj",
                                         "model.layers.3.shared_head.norm"}),
        std::pair("qwen3_5", Strings{"mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"})}) {
    ImportedModel imported = import_huggingface(golden(model), {}, device_);
    const SafetensorsReader file(golden(model));
    const std::string layer = str("model/mtp.layers.", imported.model.mtp_num_layers - 1, ".");
    std::size_t found = 0;
    for (std::size_t i = 0; i < imported.weights->shards().size(); ++i) {
      const Strings ours{"enorm", "hnorm", "eh_proj", "final_layernorm"};
      for (std::size_t k = 0; k < ours.size(); ++k) {
        if (imported.weights->shards()[i].name != str(layer, ours[k], ".weight")) continue;
        const Tensor expected = file.read(file.at(names[k] + ".weight"), DType::F32, device_);
        EXPECT_TRUE(same_bits(imported.weights->data(i), expected)) << names[k];
        ++found;
      }
    }
    EXPECT_EQ(found, 4u) << model;
  }
}

TEST_F(PredictionLayersTest, ImportsRequestedNumber) {
  const auto import = [&](const char* model, i64 count) {
    return import_huggingface(golden(model), {}, device_, count);
  };
  ImportedModel none = import("deepseek_v3", 0), one = import("deepseek_v3", 1), all = import("deepseek_v3", 2),
                without_module = import("qwen3_next", 0);
  EXPECT_EQ(none.skipped_layers, (Strings{"model.layers.2.", "model.layers.3."}));
  EXPECT_EQ(none.model.mtp_num_layers, 0);
  EXPECT_TRUE(names_of(none).empty());
  EXPECT_EQ(one.skipped_layers, Strings{"model.layers.3."});
  EXPECT_EQ(one.model.mtp_num_layers, 1);
  EXPECT_EQ(2 * names_of(one).size(), names_of(all).size());
  EXPECT_TRUE(all.skipped_layers.empty());
  EXPECT_EQ(without_module.skipped_layers, Strings{"mtp."});
  EXPECT_EQ(without_module.model.mtp_hybrid_layer_pattern, "");
  EXPECT_CONTAINS(error_of([&] { import("deepseek_v3", 3); }),
                  "--mtp_num_layers=3, but the file has 2 layers for multi-token prediction");
  EXPECT_CONTAINS(error_of([&] { import_huggingface(test::source_folder() / "tests/golden/llama", {}, device_, 1); }),
                  "model type llama has no layers for multi-token prediction");
}

/// save_pretrained of transformers omits these layers but keeps the key.
TEST_F(PredictionLayersTest, ImportsFilesWithoutStatedLayers) {
  std::set<std::string> all;
  const SafetensorsReader file(golden("qwen3_5"));
  for (const SafeTensor& tensor : file.tensors())
    if (tensor.name.starts_with("mtp.")) all.insert(tensor.name);
  const ImportedModel imported = import_huggingface(changed("qwen3_5", all), {}, device_);
  EXPECT_EQ(imported.model.mtp_num_layers, 0);
  EXPECT_EQ(imported.absent_layers, 1);
  EXPECT_EQ(import_huggingface(changed("qwen3_5", all), {}, device_, 0).absent_layers, 0);
}

TEST_F(PredictionLayersTest, RejectsNumberOfLayersThatDiffersFromConfig) {
  const auto with_stated = [&](i64 count) {
    return error_with("deepseek_v3", {}, {}, {{"num_nextn_predict_layers", count}});
  };
  for (const i64 count : {0, 1, 3})
    EXPECT_CONTAINS(with_stated(count), str("'num_nextn_predict_layers' of config.json is ", count,
                                            ", but the file has 2 layers for multi-token prediction; --mtp_num_layers "
                                            "sets how many to import, 0 = none"));
  EXPECT_CONTAINS(error_with("qwen3_5", {}, {}, {{"mtp_num_hidden_layers", 2}}),
                  "'mtp_num_hidden_layers' is 2, which is not supported; allowed: 0, 1");
  EXPECT_CONTAINS(error_with("qwen3_5", {}, {}, {{"mtp_num_hidden_layers", 0}}),
                  "'mtp_num_hidden_layers' of config.json is 0, but the file has 1 layer for");
  EXPECT_CONTAINS(
      error_with("qwen3_next", {}, {{"mtp.layers.1.input_layernorm.weight", {16}, "mtp.norm.weight"}}),
      "the file has 2 layers for multi-token prediction, which share norms and a projection; one is supported");
}

TEST_F(PredictionLayersTest, RequestReplacesUnsupportedNumberInConfig) {
  const auto import_count = [&](i64 stated, i64 requested) {
    const Path copy = changed("qwen3_5", {}, {}, {{"mtp_num_hidden_layers", stated}});
    return import_huggingface(copy, {}, device_, requested).model.mtp_num_layers;
  };
  for (const i64 stated : {2, 1000}) {
    EXPECT_EQ(import_count(stated, 0), 0);
    EXPECT_EQ(import_count(stated, 1), 1);
  }
  EXPECT_CONTAINS(error_with("qwen3_5", {}, {}, {{"mtp_num_hidden_layers", 2}}),
                  "--mtp_num_layers replaces it, 0 = none");
  const Path copy = changed("deepseek_v3", {}, {}, {{"num_nextn_predict_layers", 1000}});
  EXPECT_EQ(import_huggingface(copy, {}, device_, 2).model.mtp_num_layers, 2);
}

TEST_F(PredictionLayersTest, RejectsMissingAndMisshapenTensors) {
  const auto reshaped = [&](const std::string& model, const std::string& name, const Shape& shape) {
    return error_with(model, {name}, {{name, shape, name}});
  };
  for (const char* name :
       {"enorm", "hnorm", "eh_proj", "shared_head.norm", "mlp.experts.3.up_proj", "self_attn.o_proj"}) {
    const std::string tensor = str("model.layers.3.", name, ".weight");
    EXPECT_CONTAINS(error_with("deepseek_v3", {tensor}), "has no tensor " + tensor);
  }
  for (const char* name : {"mtp.fc", "mtp.norm", "mtp.pre_fc_norm_hidden", "mtp.layers.0.mlp.experts.0.down_proj",
                           "mtp.layers.0.mlp.shared_expert_gate"})
    EXPECT_CONTAINS(error_with("qwen3_next", {str(name, ".weight")}), str("has no tensor ", name, ".weight"));
  EXPECT_CONTAINS(reshaped("deepseek_v3", "model.layers.2.eh_proj.weight", {16, 16}),
                  "model.layers.2.eh_proj.weight has shape [16, 16], but config.json requires [16, 32]");
  EXPECT_CONTAINS(reshaped("qwen3_5", "mtp.fc.weight", {16, 16}),
                  "mtp.fc.weight has shape [16, 16], but config.json requires [16, 32]");
  EXPECT_CONTAINS(error_with("qwen3_5", {}, {{"mtp.layers.0.bias", {16}, "mtp.norm.weight"}}),
                  "the tensor mtp.layers.0.bias has no counterpart");
  EXPECT_CONTAINS(error_with("deepseek_v3", {}, {{"model.layers.4.mlp.gate.weight", {16}, "model.norm.weight"}}),
                  "the tensor model.layers.4.mlp.gate.weight has no counterpart");
}

/// nemotron_h numbers the branches of all layers and has a key for their kinds.
TEST_F(PredictionLayersTest, ReadsBranchesOfNemotron) {
  const auto parse = [&](const nlohmann::json& keys) {
    return parse_huggingface_config(read_text_file(changed("nemotron_h", {}, {}, keys) / "config.json"), "config.json");
  };
  EXPECT_EQ(parse({{"mtp_layers_block_type", nullptr}}).mtp_hybrid_layer_pattern, "*E");
  EXPECT_EQ(parse({{"mtp_layers_block_type", nullptr}, {"mtp_hybrid_override_pattern", "-"}}).mtp_hybrid_layer_pattern,
            "-");
  EXPECT_EQ(parse({{"mtp_layers_block_type", {"mamba", "mlp"}}}).mtp_hybrid_layer_pattern, "M-");
  EXPECT_EQ(parse({{"num_nextn_predict_layers", 0}, {"mtp_layers_block_type", {"moe", "moe"}}}).mtp_num_layers, 0);
  EXPECT_CONTAINS(error_of([&] {
                    parse({{"mtp_layers_block_type", {"moe", "attention"}}});
                  }),
                  "model.mtp_hybrid_layer_pattern: \"E*\" must be a mixer");
  EXPECT_CONTAINS(error_of([&] { parse({{"mtp_layers_block_type", {"lstm"}}}); }), "'mtp_layers_block_type' is");
  for (const char* name :
       {"mtp.layers.0.hnorm", "mtp.layers.2.eh_proj", "mtp.layers.1.norm", "mtp.layers.0.mixer.q_proj",
        "mtp.layers.3.final_layernorm", "mtp.layers.3.mixer.experts.7.up_proj"}) {
    const bool is_counted = std::string_view(name).ends_with("eh_proj");
    EXPECT_CONTAINS(
        error_with("nemotron_h", {str(name, ".weight")}),
        is_counted ? "but the file has 1 layer for multi-token prediction" : str("has no tensor ", name, ".weight"));
  }
  ImportedModel one = import_huggingface(golden("nemotron_h"), {}, device_, 1),
                none = import_huggingface(golden("nemotron_h"), {}, device_, 0);
  EXPECT_EQ(one.skipped_layers, Strings{"mtp."});
  EXPECT_EQ(one.model.mtp_num_layers, 1);
  EXPECT_TRUE(names_of(none).empty());
  EXPECT_EQ(none.model.mtp_hybrid_layer_pattern, "");
}

/// The embedding and output matrices are shared: copies may be absent, but not differ.
TEST_F(PredictionLayersTest, RejectsCopiesThatDiffer) {
  const std::string words = "model.layers.2.embed_tokens.weight", head = "model.layers.3.shared_head.head.weight";
  EXPECT_EQ(import_huggingface(changed("deepseek_v3", {words, head}), {}, device_).model.mtp_num_layers, 2);
  EXPECT_CONTAINS(error_with("deepseek_v3", {words}, {{words, {32, 16}, "lm_head.weight"}}),
                  words + " differs from model.embed_tokens.weight, but multi-token prediction shares");
  const std::string error = error_with("deepseek_v3", {head}, {{head, {16, 16}, "lm_head.weight"}});
  EXPECT_CONTAINS(error, head + " differs from lm_head.weight");
  EXPECT_CONTAINS(error, "--mtp_num_layers=0 imports the model without it");
  EXPECT_EQ(import_huggingface(changed("deepseek_v3", {words}, {{words, {32, 16}, "lm_head.weight"}}), {}, device_, 0)
                .model.mtp_num_layers,
            0);
}

/// DeepSeek publishes 671B parameters of the model, and 11.5B of the layer for multi-token prediction without its
/// projection.
TEST_F(PredictionLayersTest, MatchesPublishedSizesOfDeepSeekV3) {
  const nlohmann::json config{
      {"model_type", "deepseek_v3"},       {"num_hidden_layers", 61},      {"hidden_size", 7168},
      {"intermediate_size", 18432},        {"num_attention_heads", 128},   {"vocab_size", 129280},
      {"max_position_embeddings", 163840}, {"num_nextn_predict_layers", 1}};
  const ModelConfig model = parse_huggingface_config(config.dump(), "config.json");
  EXPECT_EQ(model.mtp_hybrid_layer_pattern, "");
  const ParameterCounts counts = count_parameters(model);
  EXPECT_NEAR(static_cast<double>(counts.total() - counts.mtp), 671.0e9, 0.05e9);
  EXPECT_NEAR(static_cast<double>(counts.mtp - 2 * model.hidden_size * model.hidden_size), 11.5e9, 0.05e9);
}

/// A layer can be exported only with the branches that it has in files of the model type.
TEST_F(PredictionLayersTest, ExportRequiresLayersOfModelType) {
  ModelConfig model = parse_huggingface_config(read_text_file(golden("qwen3_next") / "config.json"), "config.json", 1);
  EXPECT_TRUE(has_exporting_family(model, "qwen3_next"));
  EXPECT_FALSE(has_exporting_family(model, "qwen3_5_text"));
  model.mtp_hybrid_layer_pattern = "GE";
  EXPECT_FALSE(has_exporting_family(model));
  EXPECT_CONTAINS(error_of([&] { exporting_family(model, "qwen3_next"); }),
                  "qwen3_next requires different values of model.mtp_hybrid_layer_pattern");
  model.mtp_hybrid_layer_pattern = "*E", model.mtp_num_layers = 2;
  EXPECT_CONTAINS(error_of([&] { exporting_family(model, "qwen3_next"); }), "model.mtp_num_layers");
  model.mtp_num_layers = 1, model.mtp_loss_scaling_factor = 0.3;
  EXPECT_TRUE(has_exporting_family(model, "qwen3_next"));
  model = parse_huggingface_config(read_text_file(golden("deepseek_v3") / "config.json"), "config.json");
  EXPECT_EQ(exporting_family(model).model_type, "deepseek_v3");
  model.mtp_num_layers = 5;
  EXPECT_EQ(exporting_family(model).model_type, "deepseek_v3");
  model.mtp_hybrid_layer_pattern = "*-";
  EXPECT_FALSE(has_exporting_family(model));
}

}  // namespace
}  // namespace mcpp
