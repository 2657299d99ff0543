#include "checkpoint/load/tensor_files.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "nn/tensor_region.h"

namespace mcpp {

const FileTensor* TensorFiles::find(std::string_view name) const {
  const std::vector<FileTensor>& all = tensors();
  const auto found = std::ranges::lower_bound(all, name, {}, &FileTensor::name);
  return found != all.end() && found->name == name ? &*found : nullptr;
}

const FileTensor& TensorFiles::at(std::string_view name) const {
  if (const FileTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const FileTensor& tensor : tensors()) names.push_back(tensor.name);
  const std::string nearest = nearest_name(name, names);
  fail(ExitCode::BadInput, source(), " has no tensor ", name,
       nearest.empty() ? std::string() : "; the nearest is " + nearest);
}

Tensor TensorFiles::read_all(std::string_view name, DType dtype, Device& device) {
  return read(name, full_box(at(name).shape), dtype, device);
}

Box full_box(const Shape& shape) {
  return {shape, Shape(shape.size(), 0), shape};
}

void copy_box(const Box& from_box, const std::byte* from, const Box& to_box, std::byte* to, i64 element_size) {
  for_each_run(full_region(from_box), full_region(to_box), [&](i64 from_at, i64 to_at, i64 count) {
    std::memcpy(to + to_at * element_size, from + from_at * element_size,
                static_cast<std::size_t>(count * element_size));
  });
}

}  // namespace mcpp
