// Fuzz targets for checkpoint files of this program and of Hugging Face.
#include <array>

#include "base/check.h"
#include "base/checksum.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/load/reader.h"
#include "megatron_cpp/huggingface/quantized_weights.h"
#include "tests/fuzz/targets.h"

namespace mcpp::fuzz {
namespace {

/// Returns the manifest of the checkpoint in tests/fuzz/corpus/checkpoint_file: a file with "a", [2, 3] fp32 in two
/// chunks, and "b", [5] bf16.
Manifest manifest_of(std::string_view file) {
  const std::string checksum = checksum_hex(file);
  Manifest manifest;
  manifest.files.push_back({"ranks.h5", static_cast<i64>(file.size()), checksum});
  const Box a{{2, 3}, {0, 0}, {2, 3}}, b{{5}, {0}, {5}};
  const auto chunk = [&](const Region& region, const char* dataset) {
    return ShardEntry{region, 0, dataset, checksum};
  };
  manifest.tensors = {{"model/a", DType::F32, a.global, {chunk({a, 0, 4}, "model/a/0"), chunk({a, 4, 6}, "model/a/1")}},
                      {"model/b", DType::BF16, b.global, {chunk({b, 0, 5}, "model/b/0")}}};
  return manifest;
}

void read_all(const SafetensorsReader& reader) {
  CpuDevice memory;
  for (const SafeTensor& tensor : reader.tensors()) {
    MCPP_CHECK(reader.find(tensor.name) != nullptr);
    if (tensor.type == SafeType::Other || tensor.type == SafeType::U8) continue;
    const Tensor values = reader.read(tensor, DType::F32, memory);
    MCPP_CHECK(values.numel() == numel(tensor.shape), tensor.name);
  }
}

/// Returns a safetensors file with one fp32 tensor of one element.
std::string small_file(const std::string& name) {
  std::string header = str("{\"", name, R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})");
  const u64 size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header + std::string(4, '\0');
}

}  // namespace

void checkpoint_file(std::string_view input) {
  const Path folder = scratch_file("ranks.h5", input).parent_path();
  const std::string text = to_json(manifest_of(input));
  scratch_file(std::string(kManifestName), text);
  scratch_file(std::string(kManifestChecksumName), checksum_hex(text) + "\n");
  CheckpointReader reader(folder);
  CpuDevice memory;
  for (const TensorEntry& tensor : reader.manifest().tensors) {
    MCPP_CHECK(reader.read_full_tensor(tensor.name, memory).numel() == numel(tensor.global));
  }
}

void manifest(std::string_view input) {
  const Manifest manifest = parse_manifest(input, "manifest.json");
  validate(manifest, "manifest.json");
  MCPP_CHECK(manifest.bytes() >= 0);
  const std::string text = to_json(manifest);
  MCPP_CHECK(to_json(parse_manifest(text, "again")) == text, "the round trip changed the manifest");
}

void quantized_weights(std::string_view input) {
  static const std::array<Quantization, 4> kQuantizations{{
      {QuantMethod::Fp8, {{2, 3}}},
      {QuantMethod::Fp8, {{}}},
      {QuantMethod::Mxfp4, {}},
      {QuantMethod::CompressedTensors, {{1, 0}, {1, 2}, {2, 2}}},
  }};
  if (input.empty()) return;
  const Quantization& quantization = kQuantizations.at(static_cast<u8>(input[0]) % kQuantizations.size());
  const WeightFiles weights(SafetensorsReader(scratch_file("model.safetensors", input.substr(1))), quantization, "x");
  CpuDevice memory;
  for (const SafeTensor& tensor : weights.files().tensors()) {
    constexpr std::string_view kBlocks = "_blocks";
    const std::string name =
        tensor.name.ends_with(kBlocks) ? tensor.name.substr(0, tensor.name.size() - kBlocks.size()) : tensor.name;
    if (tensor.type == SafeType::Other || (tensor.type == SafeType::U8 && name == tensor.name)) continue;
    const Shape shape = weights.shape(name);
    MCPP_CHECK(weights.read(name, DType::BF16, memory).shape() == shape, name);
    MCPP_CHECK(!weights.stored_names(name).empty());
  }
}

void safetensors(std::string_view input) {
  read_all(SafetensorsReader(scratch_file("model.safetensors", input)));
}

void safetensors_index(std::string_view input) {
  const Path folder = scratch_file("model.safetensors.index.json", input).parent_path();
  scratch_file("x.safetensors", small_file("x"));
  scratch_file("y.safetensors", small_file("y"));
  read_all(SafetensorsReader(folder));
}

}  // namespace mcpp::fuzz
