#include "megatron_cpp/huggingface/huggingface.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/directory/folder.h"
#include "megatron_cpp/huggingface/huggingface_tokenizer.h"
#include "megatron_cpp/huggingface/prediction_layers.h"
#include "megatron_cpp/huggingface/quantized_weights.h"
#include "megatron_cpp/huggingface/weight_map.h"
#include "model/layers/moe/router.h"
#include "model/meta_model.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

namespace fs = std::filesystem;

/// Source of our parameters, each of which is assembled from the files when it is read.
class ImportedWeights final : public ShardSource {
 public:
  ImportedWeights(const Path& folder, WeightFiles files, std::vector<WeightRule> rules, DType dtype, Device& device)
      : folder_(folder.string()), files_(std::move(files)), rules_(std::move(rules)), device_(device) {
    for (const WeightRule& rule : rules_) {
      ShardSpec spec;
      static_cast<Region&>(spec) = full_region({rule.shape, Shape(rule.shape.size(), 0), rule.shape});
      spec.name = model_tensor(rule.name);
      spec.dtype = rule.dtype.value_or(dtype);
      specs_.push_back(std::move(spec));
    }
  }

  std::span<const ShardSpec> shards() const override { return specs_; }

  Tensor data(std::size_t index) override {
    const WeightRule& rule = rules_[index];
    std::vector<Tensor> foreign;
    for (const ForeignTensor& tensor : rule.foreign) {
      foreign.push_back(files_.read(tensor.name, specs_[index].dtype, device_));
      check_finite(foreign.back(), folder_ + ": " + tensor.name);
    }
    return gather_rows(rule, foreign);
  }

 private:
  std::string folder_;
  WeightFiles files_;
  std::vector<WeightRule> rules_;
  Device& device_;
  std::vector<ShardSpec> specs_;
};

/// Throws unless the file has every tensor of the rule with the expected shape.
void check_tensors(const WeightFiles& files, const WeightRule& rule, const std::string& folder) {
  for (const ForeignTensor& tensor : rule.foreign) {
    const Shape stored = files.shape(tensor.name);
    check_input(stored == tensor.shape, folder, ": ", tensor.name, " has shape ", stored, ", but config.json requires ",
                tensor.shape);
  }
}

/// Returns the type of the stored weights if all have the same 16-bit type, otherwise fp32. Ignores parameters with a
/// fixed type and quantized weights.
DType stored_type(const WeightFiles& files, const std::vector<WeightRule>& rules) {
  std::set<SafeType> types;
  for (const WeightRule& rule : rules) {
    if (rule.dtype) continue;
    for (const ForeignTensor& tensor : rule.foreign)
      if (const std::optional<SafeType> type = files.type(tensor.name)) types.insert(*type);
  }
  if (types == std::set{SafeType::BF16}) return DType::BF16;
  return types == std::set{SafeType::F16} ? DType::F16 : DType::F32;
}

/// Throws if the file has a copy of the rule's tensor (WeightRule::copies) that differs from this tensor.
void check_copies(const SafetensorsReader& reader, const WeightRule& rule, const std::string& folder) {
  for (const std::string& name : rule.copies) {
    const SafeTensor* copy = reader.find(name);
    const SafeTensor& tensor = reader.at(rule.foreign[0].name);
    const bool is_equal = !copy || (copy->type == tensor.type && copy->shape == tensor.shape &&
                                    std::ranges::equal(reader.bytes(*copy), reader.bytes(tensor)));
    check_input(is_equal, folder, ": ", name, " differs from ", tensor.name,
                ", but multi-token prediction shares the embedding and output matrices of the model; "
                "--mtp_num_layers=0 imports the model without it");
  }
}

std::set<std::string> to_set(const std::vector<std::string>& names) {
  return {names.begin(), names.end()};
}

/// Throws if the file has tensors that the model does not use, except tensors with one of the `optional` prefixes.
/// Returns the optional prefixes that occur.
std::vector<std::string> check_all_used(const WeightFiles& files, const std::vector<WeightRule>& rules,
                                        const std::vector<std::string>& optional, const Family& family,
                                        const std::string& folder) {
  const SafetensorsReader& reader = files.files();
  std::set<std::string> used, skipped;
  for (const WeightRule& rule : rules) {
    for (const ForeignTensor& tensor : rule.foreign) used.merge(to_set(files.stored_names(tensor.name)));
    used.insert(rule.copies.begin(), rule.copies.end());
  }
  for (const SafeTensor& tensor : reader.tensors()) {
    if (used.contains(tensor.name) || is_buffer(tensor.name)) continue;
    const auto layer =
        std::ranges::find_if(optional, [&](const std::string& prefix) { return tensor.name.starts_with(prefix); });
    if (layer != optional.end()) {
      skipped.insert(*layer);
      continue;
    }
    // A tied output matrix may also be stored; it must then equal the embedding.
    const SafeTensor& embedding = reader.at(rules[0].foreign[0].name);
    const bool is_tied_copy = tensor.name == str(family.output, ".weight") && tensor.type == embedding.type &&
                              std::ranges::equal(reader.bytes(tensor), reader.bytes(embedding));
    check_input(is_tied_copy, folder, ": the tensor ", tensor.name, " has no counterpart in the model of config.json");
  }
  return {skipped.begin(), skipped.end()};
}

/// Creates the folder. Throws if it already holds a model, so that the files of two models cannot mix.
void prepare_folder(const Path& folder) {
  check_outside_checkpoints(folder);
  mcpp::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    check_input(name.find(".safetensors") == std::string::npos, folder.string(), " already holds a model (", name,
                "); use a different folder");
  }
}

/// Tensors of an export, in the order in which they are written.
class ExportFiles {
 public:
  /// `dtype_of` returns the type of the values of a rule. `tensors` must outlive the object.
  ExportFiles(const std::vector<ForeignParts>& tensors, const Family& family, ExportQuantization quantization,
              const std::function<DType(const WeightRule&)>& dtype_of)
      : tensors_(tensors), quantization_(quantization) {
    bool has_quantized = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const WeightRule& rule = *tensors[i].parts[0].rule;
      const bool is_fp8 = quantization == ExportQuantization::Fp8Block && is_quantized(tensors[i], family);
      add({.name = tensors[i].tensor.name, .dtype = dtype_of(rule), .shape = tensors[i].tensor.shape, .is_fp8 = is_fp8},
          {i, false});
      has_quantized = has_quantized || is_fp8;
      if (!is_fp8) continue;
      Shape blocks = tensors[i].tensor.shape;
      for (i64& size : blocks) size /= kFp8ExportBlock;
      add({.name = tensors[i].tensor.name + "_scale_inv", .dtype = DType::F32, .shape = blocks}, {i, true});
    }
    check_input(has_quantized || quantization == ExportQuantization::None, "quantization = ", enum_name(quantization),
                ": no matrix of attention, MLPs or experts has sizes that are multiples of ", kFp8ExportBlock,
                "; export without quantization");
  }

  const std::vector<SafeSpec>& specs() const { return specs_; }

  /// Returns the contents of specs()[i]. `read` returns the parameter of a rule.
  SafeData data(std::size_t i, const std::function<Tensor(const WeightRule&)>& read) const {
    Tensor values = scatter_rows(tensors_[entries_[i].tensor], read);
    if (!specs_[i].is_fp8 && !entries_[i].is_scale) return values;
    Fp8Blocks blocks = quantize_fp8_blocks(values);
    if (entries_[i].is_scale) return std::move(blocks.scales);
    return std::move(blocks.codes);
  }

  /// Returns 'quantization_config'; null without quantization.
  OrderedJson quantization_config() const {
    if (quantization_ == ExportQuantization::None) return {};
    constexpr std::string_view kWeight = ".weight";
    std::vector<std::string> modules;
    for (const SafeSpec& spec : specs_)
      if (!spec.is_fp8 && spec.shape.size() == 2 && spec.name.ends_with(kWeight))
        modules.push_back(spec.name.substr(0, spec.name.size() - kWeight.size()));
    return fp8_block_config(kFp8ExportBlock, modules);
  }

 private:
  struct Entry {
    std::size_t tensor = 0;
    bool is_scale = false;  ///< the scales of the tensor
  };

  /// Returns true for matrices of attention, MLPs and experts with suitable sizes.
  static bool is_quantized(const ForeignParts& foreign, const Family& family) {
    const Shape& shape = foreign.tensor.shape;
    const bool is_linear = foreign.parts[0].rule->name.find(".linear_") != std::string::npos;
    if (!is_linear || shape.size() < 2 || foreign.tensor.is_vector) return false;
    check_input(!foreign.tensor.is_transposed, "quantization = fp8_block: files of model type ", family.model_type,
                " have transposed matrices (", foreign.tensor.name,
                "), which this quantization does not define; use another model_type, or export without quantization");
    return shape.size() == 2 && shape[0] % kFp8ExportBlock == 0 && shape[1] % kFp8ExportBlock == 0;
  }

  void add(SafeSpec spec, Entry entry) {
    specs_.push_back(std::move(spec));
    entries_.push_back(entry);
  }

  const std::vector<ForeignParts>& tensors_;
  ExportQuantization quantization_;
  std::vector<SafeSpec> specs_;
  std::vector<Entry> entries_;
};

}  // namespace

ImportedModel import_huggingface(const Path& folder, std::optional<DType> dtype, Device& device,
                                 std::optional<i64> prediction_layers) {
  const Path config = folder / "config.json";
  const std::string text = read_text_file(config);
  const Family& family = family_of_config(text, config.string());
  // A requested number replaces the number in config.json, which may be unsupported.
  ModelConfig model =
      parse_huggingface_config(text, config.string(), prediction_layers ? std::optional(i64{0}) : std::nullopt);
  WeightFiles files(SafetensorsReader(folder), parse_quantization(text, config.string()), folder.string());
  const PredictionLayers prediction =
      choose_prediction_layers(files.files(), family, model.num_layers, parse_prediction_layers(text, config.string()),
                               prediction_layers, folder.string());
  if (prediction.count != model.mtp_num_layers)
    model = parse_huggingface_config(text, config.string(), prediction.count);
  const bool is_bare_model = family.family == HuggingfaceFamily::Gpt2 && files.files().find("wte.weight") != nullptr;
  const auto check = [&](const WeightRule& rule) {
    check_tensors(files, rule, folder.string());
    check_copies(files.files(), rule, folder.string());
  };
  std::vector<WeightRule> rules = weight_map(model, weight_names(family, is_bare_model ? "" : family.base), check);
  std::vector<std::string> skipped = check_all_used(files, rules, prediction.skipped, family, folder.string());
  const DType type = dtype.value_or(stored_type(files, rules));
  const bool ignores_index = files.files().ignores_index();
  return {.model = std::move(model),
          .weights = std::make_unique<ImportedWeights>(folder, std::move(files), std::move(rules), type, device),
          .skipped_layers = std::move(skipped),
          .absent_layers = prediction.absent,
          .ignores_index = ignores_index};
}

void export_huggingface(const Path& folder, const ModelConfig& model, CheckpointReader& checkpoint,
                        const HuggingfaceExport& options) {
  const Family& family = exporting_family(model, options.model_type);
  check_has_weights(checkpoint, options.weights);
  const std::vector<WeightRule> rules = weight_map(model, family);
  std::optional<HuggingfaceTokenizer>
      tokenizer;  // created first, so that an unsupported tokenizer is reported before anything is written
  if (!options.tokenizer_model.empty()) tokenizer.emplace(options.tokenizer_model);
  const std::vector<ForeignParts> tensors = foreign_tensors(rules);
  const auto dtype_of = [&](const WeightRule& rule) {
    const DType stored = tensor_entry(checkpoint.manifest(), model_tensor(rule.name), checkpoint.directory()).dtype;
    return rule.dtype.value_or(options.dtype.value_or(stored));
  };
  const ExportFiles files(tensors, family, options.quantization, dtype_of);
  prepare_folder(folder);
  CpuDevice device;
  const auto read = [&](const WeightRule& rule) {
    NamedShard ours(weight_tensor(checkpoint.manifest(), options.weights, rule.name),
                    {rule.shape, Shape(rule.shape.size(), 0), rule.shape},
                    Tensor::empty(rule.shape, dtype_of(rule), device, MemoryClass::Other));
    checkpoint.read(ours, Conversion::Convert);
    check_finite(ours.data, str(checkpoint.directory().string(), ": ", rule.name));
    return ours.data;
  };
  const SpecialTokens tokens = options.tokens.is_stated() || !tokenizer ? options.tokens : tokenizer->special_tokens();
  if (tokenizer) tokenizer->write(folder, model.max_positions(), tokens);
  for (const char* name : {"generation_config.json", "chat_template.jinja"}) {
    const auto stated = tokens.files.find(name);
    if (stated != tokens.files.end()) write_file_atomic(folder / name, stated->second);
  }
  write_file_atomic(folder / "config.json",
                    huggingface_config(model, family, files.specs()[0].dtype, tokens, files.quantization_config()));
  write_safetensors(
      folder, files.specs(), [&](std::size_t i) { return files.data(i, read); }, options.max_file_bytes);
}

namespace {

/// Parameter of the model with experts, without storage.
struct UpcycledParam {
  Param param;
  /// Dense parameter to copy to this parameter, or to each slice along its first axis; empty = initialized randomly.
  std::string source;
  bool is_stacked;
};

/// Returns the name of the MLP parameter to copy to an expert parameter.
std::string dense_name(std::string name) {
  constexpr std::string_view kExperts = ".mlp.experts.";
  if (const std::size_t at = name.find(kExperts); at != std::string::npos) name.replace(at, kExperts.size(), ".mlp.");
  return name;
}

UpcycledParam make_upcycled_param(const Param& param) {
  const bool is_router = param.name.find(".mlp.router.") != std::string::npos;
  const std::string source = is_router ? "" : dense_name(param.name);
  return {.param = Param(param.name, param.box, param.init, param.init_std),
          .source = source,
          .is_stacked = !is_router && source != param.name};
}

class Upcycled final : public ShardSource {
 public:
  Upcycled(CheckpointReader& dense, const ModelConfig& model, u64 seed, Device& device)
      : dense_(dense), seed_(seed), device_(device) {
    visit_meta_params(model, [&](const Param& param) { params_.push_back(make_upcycled_param(param)); });
    for (const UpcycledParam& entry : params_) add(entry);
    if (model.moe.router_enable_expert_bias) add_biases(model);
  }

  std::span<const ShardSpec> shards() const override { return specs_; }

  Tensor data(std::size_t index) override {
    const ShardSpec& spec = specs_[index];
    if (index >= params_.size()) return Tensor::zeros(spec.box.shape, spec.dtype, device_, MemoryClass::Other);
    UpcycledParam& entry = params_[index];
    Tensor values = Tensor::empty(spec.box.shape, spec.dtype, device_, MemoryClass::Other);
    if (entry.source.empty()) {
      initialize(entry.param, seed_, 0, values);
      return values;
    }
    const i64 copies = entry.is_stacked ? spec.box.shape[0] : 1;
    Tensor first = values.flat(0, values.numel() / copies);
    Shape shape(spec.box.shape.begin() + (entry.is_stacked ? 1 : 0), spec.box.shape.end());
    const Box box{shape, Shape(shape.size(), 0), shape};
    NamedShard shard(model_tensor(entry.source), box, first);
    dense_.read(shard, Conversion::Refuse);
    for (i64 copy = 1; copy < copies; ++copy) {
      Tensor other = values.flat(copy * first.numel(), first.numel());
      ops::copy(first, other);
    }
    return values;
  }

 private:
  void add(const UpcycledParam& entry) {
    ShardSpec spec;
    static_cast<Region&>(spec) = full_region(entry.param.box);
    spec.name = model_tensor(entry.param.name);
    const std::string source = entry.source.empty() ? params_.front().source : entry.source;
    spec.dtype = tensor_entry(dense_.manifest(), model_tensor(source), dense_.directory()).dtype;
    specs_.push_back(std::move(spec));
  }
  void add_biases(const ModelConfig& model) {
    for (const UpcycledParam& entry : params_) {
      if (!entry.source.empty()) continue;
      ShardSpec spec;
      static_cast<Region&>(spec) = full_region(slab({model.moe.num_experts}, 0, 0, model.moe.num_experts));
      spec.name = model_tensor(expert_bias_name(entry.param.name));
      spec.dtype = DType::F32;
      specs_.push_back(std::move(spec));
    }
  }

  CheckpointReader& dense_;
  u64 seed_;
  Device& device_;
  std::vector<UpcycledParam> params_;
  std::vector<ShardSpec> specs_;
};

}  // namespace

std::unique_ptr<ShardSource> upcycle(CheckpointReader& dense, const ModelConfig& upcycled, u64 seed, Device& device) {
  check_input(
      upcycled.moe.shared_expert_intermediate_size == 0,
      "model.moe_shared_expert_intermediate_size: a dense model has no weights to initialize a shared expert with");
  check_input(upcycled.moe.latent_size == 0,
              "model.moe_latent_size: experts are initialized with MLPs, which read the hidden state; remove it");
  check_input(upcycled.moe_ffn() == upcycled.max_ffn() && !upcycled.ffn_hidden_size.is_list(),
              "model.moe_ffn_hidden_size: experts are initialized with MLPs, of width ", upcycled.max_ffn(), ", not ",
              upcycled.moe_ffn());
  return std::make_unique<Upcycled>(dense, upcycled, seed, device);
}

}  // namespace mcpp
