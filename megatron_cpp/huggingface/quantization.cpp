#include "megatron_cpp/huggingface/quantization.h"

#include <algorithm>

namespace mcpp {
namespace {

constexpr i64 kMaxBlock = i64{1} << 30;
constexpr const char* kConvert =
    "fp8, mxfp4, compressed-tensors. Load other models in transformers, dequantize them and save them in bf16";

/// Parses the rows and columns of blocks from a key of the form [128, 128].
ScaleBlock parse_block(const ConfigJson& config, const char* key) {
  const Json& sizes = *config.find(key);
  const auto is_size = [](const Json& size) {
    return size.is_number_integer() && size.get<i64>() > 0 && size.get<i64>() <= kMaxBlock;
  };
  config.require(sizes.is_array() && sizes.size() == 2 && std::ranges::all_of(sizes, is_size), key, sizes.dump(),
                 "the rows and columns of a block, such as [128, 128]");
  return {sizes[0].get<i64>(), sizes[1].get<i64>()};
}

Quantization parse_fp8(const ConfigJson& config) {
  const std::string format = config.text("fmt", "e4m3"), experts = config.text("expert_dtype", "fp8");
  config.require(format == "e4m3", "fmt", format, "e4m3");
  config.require(experts == "fp8", "expert_dtype", experts, "fp8");
  const bool has_blocks = config.find("weight_block_size") != nullptr;
  // transformers uses blocks of 128 x 128 if the key is absent, and one scale per weight if it is null.
  const bool is_absent = !config.has_key("weight_block_size");
  return {QuantMethod::Fp8,
          {has_blocks  ? parse_block(config, "weight_block_size")
           : is_absent ? ScaleBlock{128, 128}
                       : ScaleBlock{}}};
}

/// Parses the weights of a group of compressed-tensors.
ScaleBlock parse_strategy(const ConfigJson& weights) {
  const i64 bits = weights.integer("num_bits", 8);
  weights.require(bits == 8, "num_bits", bits, "8");
  const std::string type = weights.text("type", "int");
  weights.require(type == "float", "type", type, "float");
  weights.require(weights.flag("symmetric", true), "symmetric", "false", "true");
  const std::string strategy = weights.text("strategy", "tensor");
  const bool is_group = strategy == "group";
  weights.require(strategy == "tensor" || strategy == "channel" || strategy == "block" || is_group, "strategy",
                  strategy, "tensor, channel, group, block");
  if (strategy == "tensor") return {};
  if (strategy == "channel") return {1, 0};
  if (is_group) return {1, weights.integer("group_size")};
  weights.require(weights.find("block_structure"), "block_structure", "absent", "[128, 128]");
  return parse_block(weights, "block_structure");
}

Quantization parse_compressed(const ConfigJson& config) {
  if (const auto sparsity = config.object("sparsity_config")) {
    const std::string format = sparsity->text("format", "dense");
    sparsity->require(format == "dense", "format", format, "dense");
  }
  const std::string format = config.text("format", "float-quantized");
  config.require(format == "float-quantized" || format == "naive-quantized" || format == "mixed-precision", "format",
                 format, "float-quantized, naive-quantized");
  Quantization quantization{QuantMethod::CompressedTensors, {}};
  const auto groups = config.object("config_groups");
  config.require(groups.has_value(), "config_groups", "absent", "an object");
  for (const auto& [name, value] : config.find("config_groups")->items()) {
    const auto group = groups->object(name.c_str());
    const auto weights = group ? group->object("weights") : std::nullopt;
    if (!weights) continue;
    const ScaleBlock block = parse_strategy(*weights);
    if (std::ranges::find(quantization.blocks, block) == quantization.blocks.end())
      quantization.blocks.push_back(block);
  }
  config.require(!quantization.blocks.empty(), "config_groups", "without weights", "at least one group with weights");
  return quantization;
}

}  // namespace

Quantization parse_quantization(const ConfigJson& config) {
  const auto stated = config.object("quantization_config");
  if (!stated) return {};
  const std::string method = stated->text("quant_method", "absent");
  if (method == enum_name(QuantMethod::Fp8)) return parse_fp8(*stated);
  if (method == enum_name(QuantMethod::Mxfp4)) return {QuantMethod::Mxfp4};
  stated->require(method == enum_name(QuantMethod::CompressedTensors), "quant_method", method, kConvert);
  return parse_compressed(*stated);
}

OrderedJson fp8_block_config(i64 block, const std::vector<std::string>& unquantized) {
  return {{"quant_method", enum_name(QuantMethod::Fp8)},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {block, block}},
          {"modules_to_not_convert", unquantized}};
}

}  // namespace mcpp
