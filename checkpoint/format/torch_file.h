// Files of torch.save: a ZIP archive with a pickle and the bytes of each storage. The format that PyTorch wrote before
// version 1.6 is rejected.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "checkpoint/format/pickle.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/zip_archive.h"

namespace mcpp {

/// Element type of PyTorch.
struct TorchType {
  std::string_view name;     ///< name of the dtype, such as "float32"
  std::string_view storage;  ///< class of its storages, such as "FloatStorage"; "" if it has none
  i64 size = 0;
  SafeType type = SafeType::Other;
  bool is_signed_integer = false;
};
/// Returns the type of a dtype ("torch.float32"), or nullptr if the name is unknown.
const TorchType* find_torch_type(std::string_view dtype);

/// Tensor of a file: a strided view of a storage.
struct TorchTensor {
  const TorchType* type = nullptr;
  Shape shape;
  std::vector<i64> strides;          ///< in elements, not negative
  std::span<const std::byte> bytes;  ///< the storage from the first element on

  i64 numel() const { return mcpp::numel(shape); }
  /// Copies the elements to `to` in row-major order.
  void copy(std::byte* to) const;
  /// Returns the element of a tensor of one element with a real type; std::nullopt for other tensors.
  std::optional<double> number() const;
};

class TorchFile {
 public:
  /// Parses the file with these bytes, which must outlive this object. `source` names it in messages. Files are
  /// untrusted: throws BadInput for malformed archives and pickles.
  TorchFile(std::span<const std::byte> bytes, const std::string& source);

  /// Returns the saved object.
  const PickleValue& root() const { return pickle_.root(); }
  const std::string& source() const { return source_; }
  /// Returns the tensor or parameter that a value describes; std::nullopt if it is something else. Throws BadInput for
  /// elements beyond the end of the storage, and for more elements than the storage has. `name` is used in messages.
  std::optional<TorchTensor> tensor(const PickleValue& value, std::string_view name) const;

 private:
  TorchTensor rebuild(const PickleValue& object, std::string_view name) const;
  std::span<const std::byte> storage(const PickleValue& reference, std::string_view& storage_class,
                                     std::string_view name) const;

  std::string source_;
  ZipArchive archive_;
  std::string folder_;  // prefix of the names in the archive
  Pickle pickle_;
};

}  // namespace mcpp
