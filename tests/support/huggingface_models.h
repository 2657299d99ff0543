// Copies of Hugging Face models with changed tensors.
#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/format/safetensors.h"

namespace mcpp::test {

/// Tensor that consists of the first values of the tensor `source`.
struct ChangedTensor {
  std::string name;
  Shape shape;
  std::string source;
};
/// Copies a model without the tensors `removed` and with the tensors `added`.
inline void copy_model(const Path& source, const Path& copy, const std::set<std::string>& removed,
                       const std::vector<ChangedTensor>& added, Device& device) {
  mcpp::create_directories(copy);
  write_file_atomic(copy / "config.json", read_text_file(source / "config.json"));
  const SafetensorsReader reader(source);
  std::vector<ChangedTensor> tensors = added;
  for (const SafeTensor& tensor : reader.tensors())
    if (!removed.contains(tensor.name)) tensors.push_back({tensor.name, tensor.shape, tensor.name});
  std::vector<SafeSpec> specs;
  for (const ChangedTensor& tensor : tensors) specs.push_back({tensor.name, DType::F32, tensor.shape});
  std::filesystem::remove(copy / "model.safetensors");
  write_safetensors(
      copy, specs,
      [&](std::size_t i) {
        const Tensor values = reader.read(reader.at(tensors[i].source), DType::F32, device);
        return values.flat(0, numel(tensors[i].shape)).view(tensors[i].shape);
      },
      i64{1} << 30);
}

}  // namespace mcpp::test
