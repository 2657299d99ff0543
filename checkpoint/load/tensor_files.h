// Tensors by name in the files of other programs.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "nn/param.h"

namespace mcpp {

/// Description of a tensor in a file.
struct FileTensor {
  std::string name;
  SafeType type = SafeType::Other;
  Shape shape;
};

/// Files of a checkpoint, of which tensors and parts of tensors are read by name. Not thread-safe.
class TensorFiles {
 public:
  virtual ~TensorFiles() = default;

  /// Returns all tensors, sorted by name.
  virtual const std::vector<FileTensor>& tensors() const = 0;
  /// Reads the elements of tensor `name` that `part` covers, converted with rounding to nearest if necessary. The
  /// result has the shape of the part. Throws BadInput for damaged files, and for elements that are not in the files.
  virtual Tensor read(std::string_view name, const Box& part, DType dtype, Device& device) = 0;
  /// Returns true if a tensor or another value is stored under this name.
  virtual bool contains(std::string_view name) const = 0;
  /// Returns a number that is stored under this name, in a tensor of one element or on its own; std::nullopt if there
  /// is none.
  virtual std::optional<double> number(std::string_view name) = 0;
  /// Returns text for the beginning of messages: the path of the files.
  virtual std::string source() const = 0;

  /// Returns nullptr if the tensor is absent.
  const FileTensor* find(std::string_view name) const;
  /// Throws BadInput, suggesting the nearest name, if the tensor is absent.
  const FileTensor& at(std::string_view name) const;
  /// Reads a whole tensor.
  Tensor read_all(std::string_view name, DType dtype, Device& device);
};

/// Returns the box that covers a tensor of this shape.
Box full_box(const Shape& shape);

/// Copies the elements that both boxes of one tensor cover, of `element_size` bytes each. `from` and `to` are the
/// contents of the boxes.
void copy_box(const Box& from_box, const std::byte* from, const Box& to_box, std::byte* to, i64 element_size);

}  // namespace mcpp
