// Writer of distributed checkpoints of PyTorch (torch.distributed.checkpoint).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/format/pickle_writer.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Writes tensors and objects one after another to <folder>/__0_0.distcp, and with finish() `.metadata`, which makes
/// the checkpoint complete. Files are written atomically: a process that dies leaves no file of this checkpoint.
class DistributedWriter {
 public:
  /// Creates the folder. Throws BadInput if it has a checkpoint.
  explicit DistributedWriter(const Path& folder);

  /// Writes a tensor in host memory. `path` lists the keys that lead to it in the nested dicts that
  /// PyTorch saves and loads; joined by dots, they are the name of the tensor, which must be unique.
  void write(const std::vector<std::string>& path, const Tensor& values);
  /// Writes an object, such as a number.
  void write(const std::vector<std::string>& path, const PickleWriter& object);
  /// Makes the checkpoint visible.
  void finish();

 private:
  struct Item {
    std::vector<std::string> path;
    bool is_tensor = false;
    DType dtype = DType::F32;
    Shape shape = {};
    i64 offset = 0, length = 0;
  };
  void write_archive(const std::string& pickle, std::span<const std::byte> storage);
  void append(std::string_view bytes);

  Path folder_;
  AtomicFile file_;
  i64 offset_ = 0;
  std::map<std::string, Item> items_;  // by name
};

}  // namespace mcpp
