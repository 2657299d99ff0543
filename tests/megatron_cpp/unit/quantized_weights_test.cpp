// Quantized weights of Hugging Face models. tests/huggingface/make_quantized.py wrote tests/golden/quantized.
#include "megatron_cpp/huggingface/quantized_weights.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

#include "checkpoint/load/reader.h"
#include "checkpoint/save/writer.h"
#include "megatron_cpp/huggingface/huggingface.h"
#include "megatron_cpp/resume/weight_source.h"
#include "tensor/ops/low_precision/float_codes.h"
#include "tensor/transfer.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/support/build.h"
#include "tests/support/raw_tensors.h"
#include "tests/support/readers/hdf5_file.h"

namespace mcpp {
namespace {

using test::RawTensors;

class HuggingfaceQuantizationTest : public CheckpointTest {
 protected:
  static Path golden(const std::string& model) { return test::source_folder() / "tests/golden/quantized" / model; }

  /// Copies a golden model with changes. Returns the error of importing it, including all weights.
  std::string import_error(const std::string& model, const std::function<void(RawTensors&, Json&)>& change) {
    RawTensors tensors = test::read_raw_tensors(golden(model));
    Json config = Json::parse(read_text_file(golden(model) / "config.json"));
    change(tensors, config);
    const Path folder = folder_ / "changed";
    test::write_raw_tensors(folder, tensors);
    write_file_atomic(folder / "config.json", config.dump());
    return error_of([&] {
      const ImportedModel imported = import_huggingface(folder, {}, device_);
      for (std::size_t i = 0; i < imported.weights->shards().size(); ++i) imported.weights->data(i);
    });
  }
  std::string config_error(const std::string& model, const std::function<void(Json&)>& change) {
    return import_error(model, [&](RawTensors&, Json& config) { change(config["quantization_config"]); });
  }
  WeightFiles files(const Path& folder) {
    const std::string text = read_text_file(folder / "config.json");
    return {SafetensorsReader(folder), parse_quantization(text, "config.json"), folder.string()};
  }
};

constexpr const char* kModels[]{"deepseek_v3", "gpt_oss", "tensor", "channel", "group", "block"};

TEST_F(HuggingfaceQuantizationTest, EqualsDequantizationOfPeersBitwise) {
  for (const char* model : kModels) {
    SCOPED_TRACE(model);
    const WeightFiles weights = files(golden(model));
    const test::Hdf5File expected(golden(model) / "expected.h5");
    const std::vector<std::string> names = expected.names("float32");
    ASSERT_EQ(names.size(), 3u);
    for (const std::string& name : names) {
      const Tensor wide = weights.read(name, DType::F32, device_), narrow = weights.read(name, DType::BF16, device_);
      const auto expected_wide = expected.read<float>("float32/" + name),
                 expected_narrow = expected.read<float>("bfloat16/" + name);
      ASSERT_EQ(wide.shape(), expected_wide.shape) << name;
      ASSERT_EQ(weights.shape(name), wide.shape());
      for (i64 i = 0; i < wide.numel(); ++i) {
        const auto at = static_cast<std::size_t>(i);
        ASSERT_EQ(std::bit_cast<u32>(wide.data<float>()[i]), std::bit_cast<u32>(expected_wide.values[at])) << name;
        ASSERT_EQ(narrow.data<BFloat16>()[i].bits, BFloat16(expected_narrow.values[at]).bits) << name << " " << i;
      }
    }
  }
}

TEST_F(HuggingfaceQuantizationTest, HasTypeOfUnquantizedWeights) {
  for (const char* model : kModels) {
    const ImportedModel imported = import_huggingface(golden(model), {}, device_);
    EXPECT_EQ(imported.weights->shards()[0].dtype, DType::BF16) << model;
  }
}

/// DeepSeek-V3's definition, also where the last blocks are smaller: the scale of element (i, j) is that of block
/// (i / 128, j / 128).
TEST_F(HuggingfaceQuantizationTest, LastBlocksMayBeSmaller) {
  constexpr i64 kRows = 130, kColumns = 257;
  std::mt19937 random(1);
  std::vector<u8> codes(kRows * kColumns);
  for (u8& code : codes) code = static_cast<u8>(random() % 0x7F);
  std::vector<float> scales(2 * 3);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = 0.3f + static_cast<float>(i);
  test::write_raw_tensors(folder_, {{"w", {"F8_E4M3", {kRows, kColumns}, test::bytes_of(codes)}},
                                    {"w_scale_inv", {"F32", {2, 3}, test::bytes_of(scales)}}});
  const WeightFiles weights(SafetensorsReader(folder_), {QuantMethod::Fp8, {{128, 128}}}, "folder");
  const Tensor values = weights.read("w", DType::F64, device_);
  for (i64 i = 0; i < kRows; ++i) {
    for (i64 j = 0; j < kColumns; ++j) {
      const float value = from_fp8(Fp8Format::E4M3, codes[static_cast<std::size_t>(i * kColumns + j)]);
      ASSERT_EQ(values.data<double>()[i * kColumns + j],
                value * scales[static_cast<std::size_t>(i / 128 * 3 + j / 128)]);
    }
  }
}

/// DeepSeek-V3.1 and later state scales that are powers of two; their tensors may be in E8M0.
TEST_F(HuggingfaceQuantizationTest, ScalesMayBeInE8m0) {
  const auto is_scale = [](const std::string& name) { return name.ends_with("_scale_inv"); };
  const std::string error = import_error("deepseek_v3", [&](RawTensors& tensors, Json&) {
    for (auto& [name, tensor] : tensors)
      if (is_scale(name)) tensor.type = "F8_E8M0", tensor.bytes.assign(tensor.bytes.size() / 4, '\x7E');
  });
  ASSERT_EQ(error, "");
  const WeightFiles halves = files(folder_ / "changed"), original = files(golden("deepseek_v3"));
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const Tensor values = halves.read(name, DType::F32, device_);
  const std::span<const std::byte> codes = original.files().bytes(original.files().at(name));
  for (i64 i = 0; i < values.numel(); ++i)
    ASSERT_EQ(values.data<float>()[i],
              from_fp8(Fp8Format::E4M3, static_cast<u8>(codes[static_cast<std::size_t>(i)])) / 2);
}

TEST_F(HuggingfaceQuantizationTest, RejectsDamagedScalesByName) {
  const std::string fp8 = "model.layers.0.mlp.down_proj.weight", mxfp4 = "model.layers.1.mlp.experts.down_proj";
  const auto error = [&](const std::string& model, const std::string& name,
                         const std::function<void(RawTensors&, const std::string&)>& change) {
    return import_error(model, [&](RawTensors& tensors, Json&) { change(tensors, name); });
  };
  const auto erase = [](RawTensors& tensors, const std::string& name) { tensors.erase(name); };
  EXPECT_CONTAINS(error("deepseek_v3", fp8 + "_scale_inv", erase),
                  fp8 + " is in fp8, but its scales " + fp8 + "_scale_inv are missing; download");
  EXPECT_CONTAINS(error("channel", fp8 + "_scale", erase), "its scales " + fp8 + "_scale are missing");
  EXPECT_CONTAINS(error("gpt_oss", mxfp4 + "_scales", erase), "its scales " + mxfp4 + "_scales are missing");
  const auto truncate = [](RawTensors& tensors, const std::string& name) {
    test::RawTensor& tensor = tensors.at(name);
    const i64 removed = numel(tensor.shape) / tensor.shape[0];
    tensor.bytes.resize(tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]) *
                        static_cast<std::size_t>(tensor.shape[0] - 1));
    EXPECT_GT(removed, 0);
    tensor.shape[0] -= 1;
  };
  EXPECT_CONTAINS(
      error("deepseek_v3", fp8 + "_scale_inv", truncate),
      fp8 + "_scale_inv has shape [3, 3], but 'quantization_config' requires [4, 3] for the shape [32, 48]");
  EXPECT_CONTAINS(error("channel", fp8 + "_scale", truncate), "requires [16, 1] for the shape [16, 24]");
  EXPECT_CONTAINS(error("gpt_oss", mxfp4 + "_scales", truncate), mxfp4 + "_scales has shape [3, 32, 2]");
  const auto make_nan = [](RawTensors& tensors, const std::string& name) {
    test::RawTensor& tensor = tensors.at(name);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (tensor.type == "U8")
      tensor.bytes[5] = '\xFF';
    else
      std::memcpy(tensor.bytes.data() + sizeof nan, &nan, sizeof nan);
  };
  EXPECT_CONTAINS(error("deepseek_v3", fp8 + "_scale_inv", make_nan),
                  fp8 + "_scale_inv has the value nan at element 1");
  EXPECT_CONTAINS(error("gpt_oss", mxfp4 + "_scales", make_nan),
                  mxfp4 + "_scales has the value NaN (255) at element 5");
  const auto make_integer = [](RawTensors& tensors, const std::string& name) { tensors.at(name).type = "I32"; };
  EXPECT_CONTAINS(error("deepseek_v3", fp8 + "_scale_inv", make_integer), "element type that scales cannot have");
}

TEST_F(HuggingfaceQuantizationTest, RejectsDamagedWeightsByName) {
  const std::string fp8 = "model.layers.0.mlp.down_proj.weight", mxfp4 = "model.layers.1.mlp.experts.down_proj_blocks";
  const auto error = [&](const std::string& model, const std::function<void(RawTensors&)>& change) {
    return import_error(model, [&](RawTensors& tensors, Json&) { change(tensors); });
  };
  EXPECT_CONTAINS(error("deepseek_v3", [&](RawTensors& t) { t.at(fp8).bytes[3] = '\x7F'; }),
                  fp8 + " has NaN or infinite values");
  EXPECT_CONTAINS(error("deepseek_v3", [&](RawTensors& t) { t.at(fp8).type = "F8_E5M2"; }),
                  fp8 + " has shape [32, 48] in F8_E5M2; quantized weights must be matrices in F8_E4M3");
  EXPECT_CONTAINS(error("deepseek_v3", [&](RawTensors& t) { t.at(fp8).shape = {48, 32}; }), "requires");
  EXPECT_CONTAINS(error("gpt_oss", [&](RawTensors& t) { t.at(mxfp4).type = "I8"; }), "must be in U8");
  EXPECT_CONTAINS(error("gpt_oss",
                        [&](RawTensors& t) {
                          t.at(mxfp4).shape = {4, 32, 4, 8};
                        }),
                  mxfp4 + " has shape [4, 32, 4, 8]; blocks of MXFP4 have the shape");
  EXPECT_CONTAINS(error("gpt_oss",
                        [&](RawTensors& t) {
                          t.at(mxfp4).shape = {4, 64, 1, 16};
                          t.at("model.layers.1.mlp.experts.down_proj_scales").shape = {4, 64, 1};
                        }),
                  "down_proj has shape [4, 32, 64], but config.json requires [4, 64, 32]");
  EXPECT_CONTAINS(error("deepseek_v3",
                        [](RawTensors& t) {
                          t["extra_scale_inv"] = {"F32", {1}, "\1\1\1\1"};
                        }),
                  "the tensor extra_scale_inv has no counterpart");
}

TEST_F(HuggingfaceQuantizationTest, ScalesOfActivationsAreNotUsed) {
  const std::string error = import_error("tensor", [](RawTensors& tensors, Json&) {
    tensors["model.layers.0.mlp.down_proj.input_scale"] = {"F32", {1}, "\1\1\1\1"};
  });
  EXPECT_EQ(error, "");
}

TEST_F(HuggingfaceQuantizationTest, RejectsOtherQuantizationsByKey) {
  EXPECT_CONTAINS(config_error("deepseek_v3", [](Json& q) { q["quant_method"] = "awq"; }),
                  "'quant_method' is awq, which is not supported; allowed: fp8, mxfp4, compressed-tensors. Load other");
  EXPECT_CONTAINS(config_error("deepseek_v3", [](Json& q) { q = nullptr; }),
                  "is in fp8, but config.json has no 'quantization_config'");
  EXPECT_CONTAINS(config_error("gpt_oss", [](Json& q) { q = nullptr; }), "has no tensor");
  EXPECT_CONTAINS(config_error("deepseek_v3",
                               [](Json& q) {
                                 q["weight_block_size"] = {0, 128};
                               }),
                  "'weight_block_size' is [0,128]");
  EXPECT_CONTAINS(config_error("deepseek_v3",
                               [](Json& q) {
                                 q["weight_block_size"] = {128, 128};
                               }),
                  "but 'quantization_config' requires [1, 1]");
  EXPECT_CONTAINS(config_error("deepseek_v3", [](Json& q) { q["expert_dtype"] = "fp4"; }), "'expert_dtype' is fp4");
  EXPECT_CONTAINS(config_error("block", [](Json& q) { q["format"] = "nvfp4-pack-quantized"; }),
                  "'format' is nvfp4-pack-quantized");
  const auto weights_error = [&](const char* key, const Json& value) {
    return config_error("block", [&](Json& q) { q["config_groups"]["group_0"]["weights"][key] = value; });
  };
  EXPECT_CONTAINS(weights_error("num_bits", 4), "'num_bits' is 4, which is not supported; allowed: 8");
  EXPECT_CONTAINS(weights_error("type", "int"), "'type' is int");
  EXPECT_CONTAINS(weights_error("symmetric", false), "'symmetric' is false");
  EXPECT_CONTAINS(weights_error("strategy", "token"), "'strategy' is token");
  EXPECT_CONTAINS(weights_error("block_structure", {10}), "'block_structure' is [10]");
  EXPECT_CONTAINS(config_error("block", [](Json& q) { q["config_groups"] = Json::object(); }), "without weights");
}

/// Random Llama checkpoint whose matrices have sizes that are multiples of 128, except for keys and values.
class QuantizedExportTest : public HuggingfaceQuantizationTest {
 protected:
  ModelConfig model_ = [] {
    ModelConfig m;
    m.num_layers = 1, m.hidden_size = 256, m.ffn_hidden_size = 384, m.num_attention_heads = 4, m.num_query_groups = 1;
    m.vocab_size = 130, m.seq_length = m.max_position_embeddings = 64;
    m.position_embedding_type = PositionEmbedding::Rope, m.normalization = Normalization::RMSNorm;
    m.activation_func = ActivationFunction::SwiGLU, m.add_bias_linear = false;
    m.untie_embeddings_and_output_weights = true;
    return m;
  }();

  /// Returns a normally distributed tensor.
  NamedShard random_shard(const std::string& name, const Shape& shape) {
    Tensor values = Tensor::empty(shape, DType::F32, device_, MemoryClass::Other);
    std::mt19937 random(std::hash<std::string>{}(name) % 1000);
    std::normal_distribution<float> normal(0, 0.02f);
    for (i64 i = 0; i < values.numel(); ++i) values.data<float>()[i] = normal(random);
    return {model_tensor(name), {shape, Shape(shape.size(), 0), shape}, values};
  }
  std::vector<NamedShard> shards() {
    std::vector<NamedShard> result;
    visit_shapes([&](const std::string& name, const Shape& shape) { result.push_back(random_shard(name, shape)); });
    return result;
  }
  static void visit_shapes(const std::function<void(const std::string&, const Shape&)>& visit) {
    const std::string layer = "decoder.layers.0.";
    visit("embedding.word_embeddings.weight", {256, 256});
    visit(layer + "input_layernorm.weight", {256});
    visit(layer + "self_attention.linear_qkv.weight", {1, 384, 256});
    visit(layer + "self_attention.linear_proj.weight", {256, 256});
    visit(layer + "pre_mlp_layernorm.weight", {256});
    visit(layer + "mlp.linear_fc1.weight", {2, 384, 256});
    visit(layer + "mlp.linear_fc2.weight", {256, 384});
    visit("decoder.final_layernorm.weight", {256});
    visit("output_layer.weight", {256, 256});
  }
};

TEST_F(QuantizedExportTest, EqualsDefinitionOfBlocks) {
  CheckpointReader reader(save(1, shards()));
  const Path plain = folder_ / "plain", quantized = folder_ / "quantized";
  export_huggingface(plain, model_, reader);
  export_huggingface(quantized, model_, reader, {.quantization = ExportQuantization::Fp8Block});
  const SafetensorsReader original(plain);
  const WeightFiles weights = files(quantized);
  i64 matrices = 0;
  for (const SafeTensor& tensor : original.tensors()) {
    const Tensor values = original.read(tensor, DType::F32, device_);
    const Tensor read = weights.read(tensor.name, DType::F32, device_);
    if (weights.type(tensor.name)) {
      EXPECT_EQ(read_values<float>(read), read_values<float>(values)) << tensor.name;
      continue;
    }
    ++matrices;
    const Tensor scales = weights.files().read(weights.files().at(tensor.name + "_scale_inv"), DType::F32, device_);
    const i64 columns = values.dim(1);
    ASSERT_EQ(scales.shape(), (Shape{values.dim(0) / 128, columns / 128}));
    std::vector<double> amax(static_cast<std::size_t>(scales.numel()), 0);
    const auto block_of = [&](i64 i) {
      return static_cast<std::size_t>(i / columns / 128 * (columns / 128) + i % columns / 128);
    };
    for (i64 i = 0; i < values.numel(); ++i)
      amax[block_of(i)] = std::max<double>(amax[block_of(i)], std::abs(values.data<float>()[i]));
    for (i64 i = 0; i < values.numel(); ++i) {
      const double step = amax[block_of(i)] / 448;
      ASSERT_NEAR(scales.data<float>()[block_of(i)], step, 1e-6 * step);
      // Half of the distance of neighbors: 2^-4 of the value, or 2^-10 steps for subnormal ones.
      const double x = values.data<float>()[i], bound = std::max(std::abs(x) / 16, step / 1024) * (1 + 1e-5);
      ASSERT_NEAR(read.data<float>()[i], x, bound) << tensor.name << " " << i;
    }
  }
  EXPECT_EQ(matrices, 5) << "q, o, gate, up and down";
  const Json config = Json::parse(read_text_file(quantized / "config.json"))["quantization_config"];
  EXPECT_EQ(config["quant_method"], "fp8");
  EXPECT_EQ(config["weight_block_size"], (Json{128, 128}));
  EXPECT_EQ(config["modules_to_not_convert"], (Json{"model.embed_tokens", "model.layers.0.self_attn.k_proj",
                                                    "model.layers.0.self_attn.v_proj", "lm_head"}));
  EXPECT_FALSE(Json::parse(read_text_file(plain / "config.json")).contains("quantization_config"));
}

TEST_F(QuantizedExportTest, ZeroBlocksStayZero) {
  std::vector<NamedShard> all = shards();
  for (NamedShard& shard : all)
    if (shard.name.ends_with("linear_fc2.weight"))
      std::memset(shard.data.raw(), 0, static_cast<std::size_t>(shard.data.bytes()));
  CheckpointReader reader(save(1, all));
  export_huggingface(folder_ / "zero", model_, reader, {.quantization = ExportQuantization::Fp8Block});
  const Tensor read = files(folder_ / "zero").read("model.layers.0.mlp.down_proj.weight", DType::F32, device_);
  for (i64 i = 0; i < read.numel(); ++i) ASSERT_EQ(read.data<float>()[i], 0);
}

TEST_F(QuantizedExportTest, RejectsModelsWithoutSuitableMatrices) {
  for (const char* model : {"llama", "gpt2"}) {
    const Path source = test::source_folder() / "tests/golden" / model;
    const ImportedModel imported = import_huggingface(source, {}, device_);
    CheckpointReader reader(save_checkpoint(folder_ / model, {.iteration = 0}, *imported.weights, *self_, log_));
    const Path out = folder_ / str("out_", model);
    const std::string error = error_of(
        [&] { export_huggingface(out, imported.model, reader, {.quantization = ExportQuantization::Fp8Block}); });
    EXPECT_CONTAINS(error, model == std::string("gpt2") ? "model type gpt2 have transposed matrices"
                                                        : "has sizes that are multiples of 128");
    EXPECT_FALSE(std::filesystem::exists(out)) << "nothing is written";
  }
}

}  // namespace
}  // namespace mcpp
