// Files of safetensors whose tensors are given by their bytes, such as quantized weights.
#pragma once
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/format/safetensors.h"

namespace mcpp::test {

struct RawTensor {
  std::string type;  ///< as in the file, such as "F8_E4M3"
  Shape shape;
  std::string bytes;
};
using RawTensors = std::map<std::string, RawTensor>;

/// Reads the only file of a model.
inline RawTensors read_raw_tensors(const Path& folder) {
  const std::string content = read_text_file(folder / "model.safetensors");
  u64 size = 0;
  std::memcpy(&size, content.data(), sizeof size);
  RawTensors tensors;
  const Json header = Json::parse(content.substr(sizeof size, size));
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    const std::size_t begin = value["data_offsets"][0], end = value["data_offsets"][1];
    tensors[name] = {value["dtype"], value["shape"].get<Shape>(),
                     content.substr(sizeof size + size + begin, end - begin)};
  }
  return tensors;
}

/// Writes model.safetensors.
inline void write_raw_tensors(const Path& folder, const RawTensors& tensors) {
  Json header = Json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.type},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const u64 size = text.size();
  mcpp::create_directories(folder);
  write_file_atomic(folder / "model.safetensors",
                    std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + data);
}

/// Returns the bytes of values.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace mcpp::test
