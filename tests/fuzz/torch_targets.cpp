// Fuzz targets for checkpoint files of PyTorch.
#include "base/check.h"
#include "checkpoint/load/distributed_checkpoint.h"
#include "checkpoint/load/torch_files.h"
#include "tests/fuzz/targets.h"
#include "tests/support/zip_file.h"

namespace mcpp::fuzz {
namespace {

void read_all_of(TensorFiles& files) {
  CpuDevice memory;
  for (const FileTensor& tensor : files.tensors()) {
    MCPP_CHECK(files.find(tensor.name) != nullptr, tensor.name);
    files.number(tensor.name);
    if (tensor.type == SafeType::Other) continue;
    MCPP_CHECK(files.read_all(tensor.name, DType::F32, memory).numel() == numel(tensor.shape), tensor.name);
  }
}

}  // namespace

void distributed_metadata(std::string_view input) {
  const Path folder = scratch_file(".metadata", input).parent_path();
  const std::string item =
      test::torch_file_of(test::pickled_tensor(0, {2, 3}, {3, 1}, 6) + ".", {std::string(24, 'x')});
  scratch_file("__0_0.distcp", item + item);
  DistributedCheckpoint files(folder);
  read_all_of(files);
}

void pickle(std::string_view input) {
  const Pickle pickle(std::as_bytes(std::span(input)), "x.pkl");
  MCPP_CHECK(!name_of(pickle.root().kind).empty());
  pickle.root().find("a");
}

void torch_file(std::string_view input) {
  TorchFiles files({scratch_file("x.pt", input)});
  read_all_of(files);
}

}  // namespace mcpp::fuzz
