// The safetensors format: u64 header length, a JSON header, then the data. One file, or several with
// model.safetensors.index.json. Format: https://github.com/huggingface/safetensors.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Element types of weights and of their scales. Tensors of the types U8 and Other are not converted; their bytes can
/// be read.
enum class SafeType : u8 { F64, F32, F16, BF16, F8E4M3, F8E5M2, F8E8M0, U8, Other };

struct SafeTensor {
  std::string name;
  SafeType type = SafeType::Other;
  Shape shape;
  std::size_t file = 0;  ///< index of the file among those of the reader
  i64 begin = 0;         ///< byte range in that file
  i64 end = 0;
};

/// Converts stored elements, little-endian, to the type of `to`, rounding to nearest if necessary. `what` names the
/// tensor in the error for SafeType::U8 and SafeType::Other.
void convert_elements(std::span<const std::byte> stored, SafeType type, Tensor& to, const std::string& what);

class SafetensorsReader {
 public:
  /// Opens a file, or a folder with model.safetensors or model.safetensors.index.json; if both exist, reads the single
  /// file, as transformers does. Files are untrusted: throws BadInput, naming file and tensor, unless headers are well
  /// formed and tensors cover the data without gap or overlap.
  explicit SafetensorsReader(const Path& path);

  /// Returns true if the folder also has an index, which was ignored because a single model.safetensors takes
  /// precedence.
  bool ignores_index() const { return ignores_index_; }
  /// Returns the tensors, sorted by name.
  const std::vector<SafeTensor>& tensors() const { return tensors_; }
  const SafeTensor* find(std::string_view name) const;  ///< nullptr if absent
  /// Throws BadInput, suggesting the nearest name, if the tensor is absent.
  const SafeTensor& at(std::string_view name) const;
  /// Returns the stored bytes, little-endian and row-major.
  std::span<const std::byte> bytes(const SafeTensor& tensor) const;
  /// Reads a tensor as F32, BF16, F16 or F64, converting with rounding to nearest if necessary.
  Tensor read(const SafeTensor& tensor, DType dtype, Device& device) const;

 private:
  void open_file(const Path& path);
  void open_index(const Path& path);

  Path path_;
  std::vector<MappedFile> files_;
  std::vector<SafeTensor> tensors_;
  bool ignores_index_ = false;
};

/// Tensor to write.
struct SafeSpec {
  std::string name;
  DType dtype = DType::F32;  ///< F32, BF16, F16 or F64
  Shape shape;
  bool is_fp8 = false;  ///< stored as E4M3 codes; dtype is the type of the values before
  i64 element_size() const { return is_fp8 ? 1 : size_of(dtype); }
  i64 bytes() const { return numel(shape) * element_size(); }
};

/// Contents of a tensor to write: a tensor in host memory, or codes.
struct SafeData {
  SafeData(Tensor values) : tensor(std::move(values)) {}          // NOLINT: implicit
  SafeData(std::vector<u8> values) : codes(std::move(values)) {}  // NOLINT: implicit
  std::span<const std::byte> bytes() const;

  Tensor tensor = {};
  std::vector<u8> codes = {};
};

inline constexpr i64 kMaxSafetensorsBytes = 5'000'000'000;  ///< Hugging Face's default file size

/// Writes the tensors to <folder>/model.safetensors or, if they exceed max_file_bytes, to numbered files, in the given
/// order, and an index. data(i) returns specs[i]; only one tensor is in memory at a time. Files are written atomically,
/// the index last. Tensors in a file are ordered as by the reference implementation: by descending element size, then
/// by name.
void write_safetensors(const Path& folder, const std::vector<SafeSpec>& specs,
                       const std::function<SafeData(std::size_t)>& data, i64 max_file_bytes = kMaxSafetensorsBytes);

}  // namespace mcpp
