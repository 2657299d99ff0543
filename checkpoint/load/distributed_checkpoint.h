// Reader of distributed checkpoints of PyTorch (torch.distributed.checkpoint): `.metadata`, a pickle that states where
// each part of each tensor is, and files in which torch.save wrote the parts one after another.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/torch_file.h"
#include "checkpoint/load/tensor_files.h"

namespace mcpp {

class DistributedCheckpoint final : public TensorFiles {
 public:
  /// Reads the metadata of a folder. Files are untrusted: throws BadInput, naming the tensor, for malformed metadata,
  /// for parts outside of their tensor, for parts that overlap, and for names of files outside of the folder.
  explicit DistributedCheckpoint(const Path& folder);

  /// Returns true if the folder has the metadata of a distributed checkpoint.
  static bool is_in(const Path& folder);

  const std::vector<FileTensor>& tensors() const override { return tensors_; }
  Tensor read(std::string_view name, const Box& part, DType dtype, Device& device) override;
  bool contains(std::string_view name) const override { return entries_.contains(name) || objects_.contains(name); }
  std::optional<double> number(std::string_view name) override;
  std::string source() const override { return folder_.string(); }

  /// Returns the file with an object other than a tensor, such as a list; nullptr if no object has this name. The
  /// result is valid until the next call of a function of this class.
  const TorchFile* object(std::string_view name);

 private:
  /// Bytes of a file.
  struct Extent {
    std::string file;
    i64 offset = 0, length = 0;
    auto operator<=>(const Extent&) const = default;
  };
  /// Part of a tensor.
  struct Chunk {
    Box box;
    Extent at;
  };
  struct Entry {
    const TorchType* type = nullptr;
    std::vector<Chunk> chunks;
  };
  class MetadataParser;

  const TorchFile& open(const Extent& extent);
  const MappedFile& map(const std::string& name);
  /// Returns the chunks that have elements of `part`, which they cover.
  std::vector<const Chunk*> chunks_in(std::string_view name, const Entry& entry, const Box& part);
  TorchTensor read_chunk(std::string_view name, const Entry& entry, const Chunk& chunk);

  Path folder_;
  std::vector<FileTensor> tensors_;                       // sorted by name
  std::map<std::string, Entry, std::less<>> entries_;     // of each tensor
  std::map<std::string, Extent, std::less<>> objects_;    // by name
  std::map<std::string, MappedFile, std::less<>> files_;  // opened on first use
  std::optional<std::pair<Extent, TorchFile>> open_;      // the last item that was read
};

}  // namespace mcpp
