#include "megatron_cpp/huggingface/huggingface.h"

#include <gmock/gmock.h>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "checkpoint/save/writer.h"
#include "data/preprocess/training/tokenizer_training.h"
#include "megatron_cpp/huggingface/huggingface_tokenizer.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "megatron_cpp/inference/inference.h"
#include "tensor/transfer.h"
#include "tests/checkpoint/checkpoint_fixture.h"
#include "tests/support/build.h"
#include "tests/support/huggingface_models.h"

namespace mcpp {
namespace {

class HuggingfaceTest : public CheckpointTest {
 protected:
  static Path golden(const std::string& model) { return test::source_folder() / "tests/golden" / model; }

  /// Imports into a checkpoint in folder_.
  Path import_to_checkpoint(const Path& source, std::optional<DType> dtype = {}) {
    const ImportedModel imported = import_huggingface(source, dtype, device_);
    return save_checkpoint(folder_, {.iteration = 0}, *imported.weights, *self_, log_);
  }
  static ModelConfig model_of(const Path& folder) {
    return parse_huggingface_config(read_text_file(folder / "config.json"), "config.json");
  }

  /// Gives access to the elements of a Hugging Face tensor by plain indices.
  struct Matrix {
    Tensor t;
    float at(i64 row, i64 column) const { return t.data<float>()[row * t.dim(1) + column]; }
    float at(i64 i) const { return t.data<float>()[i]; }
  };
  Matrix read_matrix(const SafetensorsReader& reader, const std::string& name) {
    return {reader.read(reader.at(name), DType::F32, device_)};
  }
};

TEST_F(HuggingfaceTest, RoundTripsEveryAttentionVariant) {
  for (const char* name :
       {"linear", "llama3", "yarn", "yarn_mscale", "yarn_attention_factor", "mistral", "ministral", "qwen2"}) {
    SCOPED_TRACE(name);
    const Path source = golden("attention") / name;
    const ModelConfig model = model_of(source);
    const auto original = nlohmann::json::parse(read_text_file(source / "config.json"));
    const auto ours = nlohmann::json::parse(huggingface_config(model, DType::F32));
    for (const char* key : {"model_type", "architectures", "sliding_window", "layer_types", "use_sliding_window"}) {
      if (original.contains(key)) {
        EXPECT_EQ(ours[key], original[key]) << key;
      }
    }
    const auto& scaling = original["rope_parameters"];
    for (const auto& [key, value] : scaling.items()) {
      if (scaling["rope_type"] != "default" && key != "rope_theta") {
        EXPECT_EQ(ours["rope_scaling"][key], value) << key;
      }
    }
    CheckpointReader reader(import_to_checkpoint(source));
    export_huggingface(folder_ / name / "hf", model, reader);
    EXPECT_TRUE(read_text_file(folder_ / name / "hf/model.safetensors") ==
                read_text_file(source / "model.safetensors"));
  }
}

std::string text_of(const ModelConfig& model) {
  Config config;
  config.model = model;
  return print_config(config);
}

TEST_F(HuggingfaceTest, RoundTripsEveryFamily) {
  for (const char* name : {"qwen3",
                           "qwen3_moe",
                           "qwen2_moe",
                           "dots1",
                           "deepseek_v2",
                           "deepseek_v2_lite",
                           "deepseek_v3",
                           "glm4_moe_lite",
                           "kimi_linear",
                           "kimi_linear_latent_queries",
                           "smollm3",
                           "gpt_oss",
                           "llama4",
                           "phi3",
                           "olmo2",
                           "gemma2",
                           "gemma3",
                           "gpt_neox",
                           "qwen3_next",
                           "qwen3_next_unnormalized",
                           "qwen3_5",
                           "qwen3_5_moe",
                           "olmo_hybrid",
                           "olmo_hybrid_rope",
                           "nemotron_h",
                           "nemotron_h_moe",
                           "nemotron_h_latent"}) {
    SCOPED_TRACE(name);
    const Path source = golden("families") / name;
    const ModelConfig model = model_of(source);
    const auto original = nlohmann::json::parse(read_text_file(source / "config.json"));
    const std::string type = original["model_type"];
    const auto ours = nlohmann::json::parse(huggingface_config(model, exporting_family(model, type), DType::F32));
    // Keys in both files have equal values; rope_parameters of transformers 5 and our form have the same effect.
    for (const auto& [key, value] : ours.items()) {
      if (original.contains(key) && key.find("token_id") == std::string::npos) {
        const bool is_none = key == "sliding_window" && original[key] == 0;  // some models write 0 for null
        EXPECT_EQ(value, is_none ? nlohmann::json() : original[key]) << key;
      }
    }
    EXPECT_EQ(text_of(parse_huggingface_config(ours.dump(), "again")), text_of(model));
    CheckpointReader reader(import_to_checkpoint(source));
    export_huggingface(folder_ / name / "hf", model, reader, {.model_type = type});
    EXPECT_TRUE(read_text_file(folder_ / name / "hf/model.safetensors") ==
                read_text_file(source / "model.safetensors"));
  }
}

/// Tensors that two of our parameters share are checked like others.
TEST_F(HuggingfaceTest, RejectsMissingAndMisshapenTensorsOfQwen3Next) {
  const Path source = golden("families/qwen3_next"), copy = folder_ / "changed";
  const auto error_with = [&](const std::string& name, const Shape& shape) {
    test::copy_model(
        source, copy, {name},
        shape.empty() ? std::vector<test::ChangedTensor>{} : std::vector{test::ChangedTensor{name, shape, name}},
        device_);
    return error_of([&] { import_huggingface(copy, {}, device_); });
  };
  const std::string queries = "model.layers.2.self_attn.q_proj.weight", scan = "model.layers.0.linear_attn.";
  EXPECT_CONTAINS(error_with(queries, {48, 16}), "q_proj.weight has shape [48, 16], but config.json requires [96, 16]");
  EXPECT_CONTAINS(error_with(queries, {}), "has no tensor model.layers.2.self_attn.q_proj.weight");
  EXPECT_CONTAINS(error_with(scan + "conv1d.weight", {44, 3}),
                  "conv1d.weight has shape [44, 3], but config.json requires [44, 1, 3]");
  EXPECT_CONTAINS(error_with(scan + "in_proj_qkvz.weight", {12, 16}), "but config.json requires [68, 16]");
  EXPECT_CONTAINS(error_with(scan + "in_proj_ba.weight", {}), "in_proj_ba.weight");
  EXPECT_CONTAINS(error_with(scan + "A_log", {2}), "A_log has shape [2], but config.json requires [6]");
}

/// Every row of a foreign tensor belongs to one row of our parameters.
TEST_F(HuggingfaceTest, WeightRulesCoverEveryForeignRowOnce) {
  for (const auto& entry : std::filesystem::directory_iterator(golden("families"))) {
    const std::string config = read_text_file(entry.path() / "config.json");
    const Family& family = family_of_config(config, "config.json");
    const std::vector<WeightRule> rules = weight_map(parse_huggingface_config(config, "config.json"), family);
    for (const ForeignParts& foreign : foreign_tensors(rules)) {
      std::vector<int> counts(static_cast<std::size_t>(numel(foreign.tensor.shape) / foreign.tensor.columns()), 0);
      for (const auto& [rule, index] : foreign.parts) {
        EXPECT_EQ(rule->foreign[index].shape, foreign.tensor.shape) << foreign.tensor.name;
        for (const RowMove& move : rule->moves) {
          for (i64 i = 0; move.foreign == index && i < move.count; ++i)
            ++counts.at(static_cast<std::size_t>(move.foreign_row + i * move.foreign_step));
        }
      }
      EXPECT_THAT(counts, testing::Each(1)) << entry.path() << " " << foreign.tensor.name;
    }
  }
}

/// If several model types can represent a model, the export uses the first, or the requested one.
TEST_F(HuggingfaceTest, ExportsRequestedModelType) {
  const Path source = golden("families") / "phi3";
  ModelConfig model = model_of(source);
  EXPECT_EQ(exporting_family(model).model_type, "phi3");  // no other type rotates only a part of each head
  model.rotary_percent = 1;
  EXPECT_EQ(exporting_family(model).model_type, "mistral");
  EXPECT_EQ(exporting_family(model, "phi3").model_type, "phi3");
  EXPECT_CONTAINS(error_of([&] { exporting_family(model, "llama"); }),
                  "llama requires different values of model.window_size");
  EXPECT_CONTAINS(error_of([&] { exporting_family(model, "phi"); }),
                  "\"phi\": the model type must be one of gpt2, llama,");
}

TEST_F(HuggingfaceTest, MapsGpt2Weights) {
  CheckpointReader ours(import_to_checkpoint(golden("gpt2")));
  const SafetensorsReader hf(golden("gpt2"));
  constexpr i64 kHidden = 48, kHeads = 4, kDim = 12;
  const Matrix attention = read_matrix(hf, "transformer.h.2.attn.c_attn.weight");  // [in, q | k | v]
  const Matrix bias = read_matrix(hf, "transformer.h.2.attn.c_attn.bias");
  const Tensor qkv = ours.read_full_tensor("model/decoder.layers.2.self_attention.linear_qkv.weight", device_);
  const Tensor qkv_bias = ours.read_full_tensor("model/decoder.layers.2.self_attention.linear_qkv.bias", device_);
  ASSERT_EQ(qkv.shape(), (Shape{kHeads, 3 * kDim, kHidden}));
  ASSERT_EQ(qkv_bias.shape(), (Shape{kHeads, 3 * kDim}));
  for (i64 head = 0; head < kHeads; ++head) {
    for (i64 part = 0; part < 3; ++part) {
      for (i64 d = 0; d < kDim; ++d) {
        const i64 column = part * kHidden + head * kDim + d, row = head * 3 * kDim + part * kDim + d;
        ASSERT_EQ(qkv_bias.data<float>()[row], bias.at(column));
        for (i64 in = 0; in < kHidden; ++in) {
          ASSERT_EQ(qkv.data<float>()[row * kHidden + in], attention.at(in, column));
        }
      }
    }
  }
  const Matrix up = read_matrix(hf, "transformer.h.0.mlp.c_fc.weight");
  const Tensor fc1 = ours.read_full_tensor("model/decoder.layers.0.mlp.linear_fc1.weight", device_);
  ASSERT_EQ(fc1.shape(), (Shape{192, kHidden}));
  EXPECT_EQ(fc1.data<float>()[100 * kHidden + 7], up.at(7, 100));
  EXPECT_FALSE(ours.has("model/output_layer.weight"));
  EXPECT_TRUE(ours.has("model/decoder.final_layernorm.bias"));
  EXPECT_EQ(ours.manifest().tensors.size(), 4u + 4 * 12);
}

TEST_F(HuggingfaceTest, MapsLlamaWeights) {
  CheckpointReader ours(import_to_checkpoint(golden("llama")));
  const SafetensorsReader hf(golden("llama"));
  constexpr i64 kHidden = 64, kGroups = 4, kQueries = 2, kDim = 8, kFfn = 160;
  const Tensor qkv = ours.read_full_tensor("model/decoder.layers.1.self_attention.linear_qkv.weight", device_);
  ASSERT_EQ(qkv.shape(), (Shape{kGroups, (kQueries + 2) * kDim, kHidden}));
  const std::string layer = "model.layers.1.";
  const Matrix q = read_matrix(hf, layer + "self_attn.q_proj.weight"),
               k = read_matrix(hf, layer + "self_attn.k_proj.weight"),
               v = read_matrix(hf, layer + "self_attn.v_proj.weight");
  for (i64 group = 0; group < kGroups; ++group) {
    for (i64 r = 0; r < (kQueries + 2) * kDim; ++r) {
      const i64 slot = r / kDim, d = r % kDim;  // slot: a query head, then the key, then the value
      const Matrix& source = slot < kQueries ? q : slot == kQueries ? k : v;
      const i64 row = slot < kQueries ? (group * kQueries + slot) * kDim + d : group * kDim + d;
      for (i64 in = 0; in < kHidden; ++in) {
        ASSERT_EQ(qkv.data<float>()[(group * (kQueries + 2) * kDim + r) * kHidden + in], source.at(row, in));
      }
    }
  }
  const Tensor fc1 = ours.read_full_tensor("model/decoder.layers.3.mlp.linear_fc1.weight", device_);
  ASSERT_EQ(fc1.shape(), (Shape{2, kFfn, kHidden}));
  const Matrix gate = read_matrix(hf, "model.layers.3.mlp.gate_proj.weight"),
               up = read_matrix(hf, "model.layers.3.mlp.up_proj.weight");
  EXPECT_EQ(fc1.data<float>()[5 * kHidden + 9], gate.at(5, 9));
  EXPECT_EQ(fc1.data<float>()[(kFfn + 5) * kHidden + 9], up.at(5, 9));
  EXPECT_TRUE(ours.has("model/output_layer.weight"));
}

TEST_F(HuggingfaceTest, ExportReproducesImportedFile) {
  for (const char* name : {"gpt2", "llama"}) {
    const Path checkpoint = import_to_checkpoint(golden(name));
    CheckpointReader reader(checkpoint);
    const Path out = folder_ / (std::string("hf_") + name);
    export_huggingface(out, model_of(golden(name)), reader);
    EXPECT_TRUE(read_text_file(out / "model.safetensors") == read_text_file(golden(name) / "model.safetensors"))
        << name;
    // The exported files import to the same checkpoint.
    const ImportedModel again = import_huggingface(out, {}, device_);
    const auto specs = again.weights->shards();
    for (std::size_t i = 0; i < specs.size(); ++i) {
      ASSERT_TRUE(same_bits(again.weights->data(i), reader.read_full_tensor(specs[i].name, device_))) << specs[i].name;
    }
    EXPECT_CONTAINS(error_of([&] { export_huggingface(out, again.model, reader); }), "already holds a model");
  }
}

/// tests/huggingface/check.py tests that transformers reads it in the same way.
TEST_F(HuggingfaceTest, ExportsTokenizerWithSpecialTokens) {
  const Path text = folder_ / "text.txt";
  write_file_atomic(text, read_text_file(test::source_folder() / "data/tinyshakespeare.txt").substr(0, 100'000));
  for (const TokenizerModel type : {TokenizerModel::Bpe, TokenizerModel::Unigram}) {
    const Path checkpoint = import_to_checkpoint(golden("gpt2")), model = folder_ / "tokenizer.model";
    const Path out = folder_ / std::string(enum_name(type));
    CheckpointReader reader(checkpoint);
    train_tokenizer(
        {.input = {text.string()}, .output = model.string(), .vocab_size = 400, .model_type = type, .num_threads = 2},
        log_);
    export_huggingface(out, model_of(golden("gpt2")), reader, {.tokenizer_model = model});
    const auto json = [&](const char* name) { return nlohmann::json::parse(read_text_file(out / name)); };
    EXPECT_TRUE(read_text_file(out / "tokenizer.model") == read_text_file(model));
    EXPECT_EQ(json("config.json")["eos_token_id"], 1);
    EXPECT_EQ(json("config.json")["bos_token_id"], 1);
    const auto config = json("tokenizer_config.json");
    EXPECT_EQ(config["eos_token"], "<eod>");
    EXPECT_EQ(config["bos_token"], "<eod>");
    EXPECT_EQ(config["add_prefix_space"], false);
    EXPECT_EQ(config["model_max_length"], 32);
    const auto tokenizer = json("tokenizer.json");
    EXPECT_TRUE(tokenizer["normalizer"].is_null());
    EXPECT_EQ(tokenizer["added_tokens"].size(), 2u);  // no id beyond the vocabulary
    EXPECT_EQ(tokenizer["model"]["vocab"].size(), 400u);
    // Scores whose sums are exact.
    for (const SentencePiece& piece : parse_sentencepiece_model(read_text_file(model), "model").pieces)
      EXPECT_EQ(piece.score * 1024, std::round(piece.score * 1024)) << piece.text;
  }
}

TEST_F(HuggingfaceTest, ExportsByteLevelTokenizerUnchanged) {
  const Path checkpoint = import_to_checkpoint(golden("gpt2")), model = folder_ / "tokenizer.model";
  CheckpointReader reader(checkpoint);
  train_tokenizer({.input = {(test::source_folder() / "data/tinyshakespeare.txt").string()},
                   .output = model.string(),
                   .vocab_size = 400,
                   .model_type = TokenizerModel::BpeBytes},
                  log_);
  const Path out = folder_ / "bytes";
  export_huggingface(out, model_of(golden("gpt2")), reader, {.tokenizer_model = model});
  EXPECT_TRUE(read_text_file(out / "tokenizer.json") == read_text_file(model));
  EXPECT_FALSE(std::filesystem::exists(out / "tokenizer.model"));
  const auto config = nlohmann::json::parse(read_text_file(out / "tokenizer_config.json"));
  EXPECT_EQ(config["eos_token"], "<|endoftext|>");
  EXPECT_EQ(config["split_special_tokens"], false);
  EXPECT_EQ(find_tokenizer_file(out), out / "tokenizer.json");
  // If there is also a sentencepiece model with fewer features, tokenizer.json is the model's own tokenizer.
  train_tokenizer({.input = {(test::source_folder() / "data/tinyshakespeare.txt").string()},
                   .output = (out / "tokenizer.model").string(),
                   .vocab_size = 399,
                   .num_threads = 2},
                  log_);
  EXPECT_EQ(find_tokenizer_file(out), out / "tokenizer.json");
  train_tokenizer({.input = {(test::source_folder() / "data/tinyshakespeare.txt").string()},
                   .output = (out / "tokenizer.model").string(),
                   .vocab_size = 400,
                   .num_threads = 2},
                  log_);
  EXPECT_EQ(find_tokenizer_file(out), out / "tokenizer.model");
}

TEST_F(HuggingfaceTest, RejectsTokenizersThatTransformersLacks) {
  const auto error = [&](SentencepieceModel model) { return error_of([&] { tokenizer_json(model, "x.model"); }); };
  SentencepieceModel valid;
  valid.pieces = {{"<unk>", 0, PieceType::Unknown}, {"a", -1, PieceType::Normal}};
  EXPECT_EQ(error(valid), "");
  SentencepieceModel model = valid;
  model.type = SegmentationType::Word;
  EXPECT_CONTAINS(error(model), "x.model: transformers has no equivalent of its model type");
  model = valid;
  model.treat_whitespace_as_suffix = true;
  EXPECT_CONTAINS(error(model), "treat_whitespace_as_suffix");
  model = valid;
  model.pieces.push_back({"b", -2, PieceType::Unused});
  EXPECT_CONTAINS(error(model), "unused pieces");
}

/// The export is read back by Tokenizer, whose ids for a tokenizer.json equal those of `tokenizers`.
TEST_F(HuggingfaceTest, ExportedSymbolsMatchSentencepiece) {
  for (const std::string flag : {"true", "false"}) {
    ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train(
                    {{"input", (test::source_folder() / "data/tinyshakespeare.txt").string()},
                     {"model_prefix", (folder_ / "symbols").string()},
                     {"model_type", "bpe"},
                     {"vocab_size", "600"},
                     {"byte_fallback", "true"},
                     {"normalization_rule_name", "identity"},
                     {"remove_extra_whitespaces", flag},
                     {"user_defined_symbols", "<sym>,<sym><sym>,ee"},
                     {"minloglevel", "2"}})
                    .ok());
    const std::string model = read_text_file(folder_ / "symbols.model");
    write_file_atomic(folder_ / "symbols.json", tokenizer_json(parse_sentencepiece_model(model, "symbols"), "symbols"));
    const Tokenizer exported(folder_ / "symbols.json");
    sentencepiece::SentencePieceProcessor processor;
    ASSERT_TRUE(processor.LoadFromSerializedProto(model).ok());
    for (const char* text :
         {"Speak <sym> speak", "<sym>speak", "<sym> speak", "speak<sym>", " speak", "  two  <sym>  spaces  ",
          "see <sym><sym><sym> trees", "\xE2\x96\x81 <sym>\xE2\x96\x81", "", " ", "line\n<sym>\n    indented\n"})
      EXPECT_EQ(exported.encode(text), processor.EncodeAsIds(text)) << text << ", remove_extra_whitespaces=" << flag;
  }
}

TEST_F(HuggingfaceTest, RejectsSymbolsThatNormalizationChanges) {
  SentencepieceModel model;
  model.remove_extra_whitespaces = true;
  model.type = SegmentationType::Bpe;
  model.pieces = {{"<unk>", 0, PieceType::Unknown}, {"a\xE2\x96\x81", 0, PieceType::UserDefined}};
  EXPECT_CONTAINS(error_of([&] { tokenizer_json(model, "x.model"); }),
                  "x.model: transformers has no equivalent of its user-defined symbols");
}

TEST_F(HuggingfaceTest, PadsVocabularyWithZerosAndStripsIt) {
  // A model of 3 tokens, whose embedding is padded to 128 rows.
  const Path source = folder_ / "tiny";
  ModelConfig model = model_of(golden("llama"));
  model.num_layers = 1, model.vocab_size = 3, model.untie_embeddings_and_output_weights = false;
  std::vector<NamedShard> shards{numbered("model/embedding.word_embeddings.weight", {128, 64}, DType::F32, 1)};
  const std::vector<std::pair<std::string, Shape>> rest{{"input_layernorm.weight", {64}},
                                                        {"pre_mlp_layernorm.weight", {64}},
                                                        {"self_attention.linear_qkv.weight", {4, 32, 64}},
                                                        {"self_attention.linear_proj.weight", {64, 64}},
                                                        {"mlp.linear_fc1.weight", {2, 160, 64}},
                                                        {"mlp.linear_fc2.weight", {64, 160}}};
  for (const auto& [name, shape] : rest) shards.push_back(numbered("model/decoder.layers.0." + name, shape));
  shards.push_back(numbered("model/decoder.final_layernorm.weight", {64}));
  CheckpointReader reader(save(1, shards));
  export_huggingface(source, model, reader, {.dtype = DType::BF16, .max_file_bytes = 20000});
  EXPECT_EQ(SafetensorsReader(source).at("model.embed_tokens.weight").shape, (Shape{3, 64}));

  const ImportedModel imported = import_huggingface(source, {}, device_);
  ASSERT_EQ(imported.weights->shards()[0].dtype, DType::BF16);
  const Tensor embedding = imported.weights->data(0);
  ASSERT_EQ(embedding.shape(), (Shape{128, 64}));
  EXPECT_EQ(load(embedding, 2 * 64 + 63), to_double(BFloat16(192.0f)));
  for (i64 i = 3 * 64; i < embedding.numel(); ++i) ASSERT_EQ(load(embedding, i), 0);

  export_huggingface(folder_ / "half", model, reader, {.dtype = DType::F16});
  const ImportedModel half = import_huggingface(folder_ / "half", {}, device_);
  ASSERT_EQ(half.weights->shards()[0].dtype, DType::F16);
  EXPECT_EQ(load(half.weights->data(0), 2 * 64 + 63), to_double(Float16(192.0f)));
}

TEST_F(HuggingfaceTest, KeepsEveryBitWhenOnlySomeTensorsAreBf16) {
  const SafetensorsReader original(golden("llama"));
  const auto import_with = [&](const Path& folder, const std::function<DType(const std::string&)>& type_of) {
    std::vector<SafeSpec> specs;
    for (const SafeTensor& tensor : original.tensors())
      specs.push_back({tensor.name, type_of(tensor.name), tensor.shape});
    std::filesystem::create_directories(folder);
    write_safetensors(folder, specs, [&](std::size_t i) {
      return original.read(original.at(specs[i].name), specs[i].dtype, device_);
    });
    std::filesystem::copy(golden("llama") / "config.json", folder);
    return import_huggingface(folder, {}, device_);
  };
  const auto is_embedding = [](const std::string& name) { return name.find("embed_tokens") != std::string::npos; };
  const ImportedModel mixed = import_with(
      folder_ / "mixed", [&](const std::string& name) { return is_embedding(name) ? DType::BF16 : DType::F32; });
  for (std::size_t i = 0; i < mixed.weights->shards().size(); ++i) {
    const ShardSpec& shard = mixed.weights->shards()[i];
    EXPECT_EQ(shard.dtype, DType::F32) << shard.name;
    if (shard.name != "model/decoder.final_layernorm.weight") continue;
    const Tensor norm = original.read(original.at("model.norm.weight"), DType::F32, device_);
    EXPECT_EQ(read_values<float>(mixed.weights->data(i)), read_values<float>(norm));
  }
  const ImportedModel all_bf16 = import_with(folder_ / "narrow", [](const std::string&) { return DType::BF16; });
  EXPECT_EQ(all_bf16.weights->shards().front().dtype, DType::BF16);
  const ImportedModel two = import_with(
      folder_ / "two", [&](const std::string& name) { return is_embedding(name) ? DType::BF16 : DType::F16; });
  EXPECT_EQ(two.weights->shards().front().dtype, DType::F32);
}

TEST_F(HuggingfaceTest, RejectsNonFiniteWeights) {
  Config config;
  config.model = model_of(golden("gpt2"));
  config.training.train_iters = config.training.global_batch_size = 1;
  const ImportedModel imported = import_huggingface(golden("gpt2"), {}, device_);
  RunState state;
  state.config = print_config(config);
  for (const double value : {1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    std::vector<NamedShard> shards;
    for (std::size_t i = 0; i < imported.weights->shards().size(); ++i) {
      const ShardSpec& spec = imported.weights->shards()[i];
      shards.emplace_back(spec.name, spec.box, imported.weights->data(i));
    }
    store(shards[5].data, 3, value);
    const Path folder = folder_ / str("weights_", value), out = folder_ / str("exported_", value);
    CheckpointReader reader(test::save_shards(folder, state, shards, *self_, log_));
    InferenceOptions options;
    options.load = folder.string();
    options.num_threads = 1;
    const std::string use = error_of([&] { InferenceModel(options, {.ranks = *self_}, log_); });
    const std::string exporting = error_of([&] { export_huggingface(out, config.model, reader); });
    for (const std::string& error : {use, exporting}) {
      if (std::isfinite(value)) {
        EXPECT_EQ(error, "");
        continue;
      }
      EXPECT_CONTAINS(error, shards[5].name.substr(model_tensor("").size()));
      EXPECT_CONTAINS(error, "NaN or infinite");
    }
  }
}

/// The error comes from the first tensor that does not match, before anything of that size is allocated.
TEST_F(HuggingfaceTest, RejectsAbsurdSizesImmediately) {
  using Json = nlohmann::json;
  struct Case {
    const char *model, *key;
    i64 value;
    const char* message;
  };
  std::filesystem::create_directories(folder_);
  for (const Case& c : std::initializer_list<Case>{
           {"gpt2", "n_embd", 1'000'000'000, "model.hidden_size"},
           {"gpt2", "n_embd", 1'000'000, "config.json requires [128, 1000000]"},
           {"gpt2", "n_layer", 1'000'000'000, "model.num_layers"},
           {"gpt2", "n_layer", 100'000, "has no tensor transformer.h.4."},
           {"gpt2", "vocab_size", 1'000'000'000'000, "model.vocab_size"},
           {"gpt2", "vocab_size", 2'000'000'000, "config.json requires [2000000000, 48]"},
           {"gpt2", "n_positions", 100'000'000, "config.json requires [100000000, 48]"},
           {"gpt2", "n_inner", 10'000'000, "config.json requires [48, 10000000]"},
           {"llama", "num_hidden_layers", 100'000, "has no tensor model.layers.4."},
           {"llama", "head_dim", 100'000, "config.json requires [800000, 64]"},
       }) {
    SCOPED_TRACE(str(c.model, " ", c.key, " ", c.value));
    auto json = Json::parse(read_text_file(golden(c.model) / "config.json"));
    json[c.key] = c.value;
    write_file_atomic(folder_ / "config.json", json.dump());
    std::filesystem::copy_file(golden(c.model) / "model.safetensors", folder_ / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    EXPECT_CONTAINS(error_of([&] { import_huggingface(folder_, {}, device_); }), c.message);
  }
  ModelConfig model = model_of(golden("gpt2"));
  model.num_layers = 100'000;
  int made = 0;
  const auto refuse_tenth = [&](const WeightRule&) { check_input(++made < 10, "the tenth"); };
  EXPECT_CONTAINS(error_of([&] { weight_map(model, weight_names(exporting_family(model), ""), refuse_tenth); }),
                  "the tenth");
  EXPECT_EQ(made, 10);
}

TEST_F(HuggingfaceTest, TensorsMustMatchConfiguration) {
  const SafetensorsReader golden_weights(golden("gpt2"));
  std::vector<SafeSpec> specs;
  for (const SafeTensor& tensor : golden_weights.tensors()) specs.push_back({tensor.name, DType::F32, tensor.shape});
  const auto attempt = [&](const std::vector<SafeSpec>& changed) {
    write_safetensors(folder_, changed, [&](std::size_t i) {
      const SafeTensor* stored = golden_weights.find(changed[i].name);
      return stored && stored->shape == changed[i].shape ? golden_weights.read(*stored, DType::F32, device_)
                                                         : Tensor::zeros(changed[i].shape, DType::F32, device_);
    });
    write_file_atomic(folder_ / "config.json", read_text_file(golden("gpt2") / "config.json"));
    return error_of([&] { import_huggingface(folder_, {}, device_); });
  };
  EXPECT_EQ(attempt(specs), "");
  auto changed = specs;
  changed.push_back({"transformer.h.0.attn.masked_bias", DType::F32, {}});
  EXPECT_EQ(attempt(changed), "") << "old buffers are ignored";
  changed.push_back({"lm_head.weight", DType::F32, {128, 48}});
  EXPECT_CONTAINS(attempt(changed), "lm_head.weight has no counterpart");
  changed = specs;
  changed.push_back({"transformer.h.9.ln_1.bias", DType::F32, {48}});
  EXPECT_CONTAINS(attempt(changed), "transformer.h.9.ln_1.bias has no counterpart");
  changed = specs;
  changed.front().shape = {145};
  EXPECT_CONTAINS(attempt(changed), "has shape [145], but config.json requires [144]");
  changed = specs;
  changed.pop_back();
  EXPECT_CONTAINS(attempt(changed), "has no tensor transformer.wte.weight");
  changed = specs;
  for (SafeSpec& spec : changed) spec.name = spec.name.substr(std::string("transformer.").size());
  EXPECT_EQ(attempt(changed), "") << "the bare model has no prefix";
}

}  // namespace
}  // namespace mcpp
