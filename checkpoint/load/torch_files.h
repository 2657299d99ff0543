// Tensors in files of torch.save: state dicts of models and optimizers.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/format/torch_file.h"
#include "checkpoint/load/tensor_files.h"

namespace mcpp {

/// Tensors and numbers in nested dicts. Names are the keys on the path to a value, joined by dots, with these changes:
///  - Tensors of a dict named "model", "state_dict", "model_state_dict" or "module" at the top level have no such
///    prefix.
///  - Dicts named "optimizer_state_dict" or "optim" are called "optimizer".
///  - The states of an optimizer that has one group of parameters, which torch.optim numbers, have the names of the
///    model's tensors: "optimizer.state.<tensor>.exp_avg".
///  - "_orig_mod." (torch.compile) and a leading "module." (DistributedDataParallel) are removed.
class TorchFiles final : public TensorFiles {
 public:
  /// Opens files whose tensors belong together, such as the parts of a model. `ignores_optimizer` leaves out the state
  /// of optimizers. Files are untrusted: throws BadInput for malformed files, for a name in two files, and for the
  /// state of an optimizer whose parameters cannot be identified.
  explicit TorchFiles(const std::vector<Path>& files, bool ignores_optimizer = false);

  const std::vector<FileTensor>& tensors() const override { return tensors_; }
  Tensor read(std::string_view name, const Box& part, DType dtype, Device& device) override;
  bool contains(std::string_view name) const override;
  std::optional<double> number(std::string_view name) override;
  std::string source() const override { return source_; }

  /// Returns the objects that the files contain, in the order of the files.
  const std::vector<TorchFile>& files() const { return files_; }

 private:
  void add_file(const TorchFile& file, bool ignores_optimizer);
  void add_dict(const TorchFile& file, const PickleValue& dict, const std::string& prefix, int depth);
  void add_value(const TorchFile& file, const PickleValue& value, std::string name, int depth);
  void add_optimizer(const TorchFile& file, const PickleValue& optimizer, const PickleValue* model);
  std::vector<std::string> parameter_names(const TorchFile& file, const PickleValue& optimizer,
                                           const PickleValue* model) const;

  std::string source_;
  std::vector<MappedFile> content_;
  std::vector<TorchFile> files_;
  std::vector<FileTensor> tensors_;
  std::map<std::string, TorchTensor, std::less<>> values_;
  std::map<std::string, std::optional<double>, std::less<>> others_;  // other values; std::nullopt: not numbers
  std::set<const PickleValue*> visited_;                              // dicts
};

}  // namespace mcpp
