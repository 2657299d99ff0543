// Models on paper: what the parameters are called, which boxes of which global tensors, in which unit and how placed,
// without memory for a single number and without other ranks. Whoever counts parameters or lists them asks here, so
// that the layers alone say what they are.
#pragma once
#include <functional>
#include <memory>

#include "model/gpt_model.h"

namespace mcpp {

/// Stands for the device and the tensor-parallel group of a model that is looked at and never run, on the first of
/// `tensor_parallel` ranks. Asking it for memory, or for anything of the other ranks, is an Internal error. Outlives
/// the models built with it.
class Paper {
 public:
  explicit Paper(i64 tensor_parallel = 1);
  ~Paper();
  Paper(const Paper&) = delete;
  Paper& operator=(const Paper&) = delete;

  /// Throws OutOfMemory for a model of which there is too much to count (check_countable()).
  ModelContext context(const ModelConfig& config);

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> tp_;
};

/// Throws OutOfMemory when a model has so many weights, or so much of `tokens` tokens goes through it, that 64 bits do
/// not hold the bytes of it: what would be counted of it has no meaning.
void check_countable(const ModelConfig& config, i64 tokens = 0);

/// Calls f on every parameter of the whole model, as one rank would hold it, in the order of GPTModel::visit(). Takes
/// the memory of one layer's description at a time, whatever the sizes are.
void visit_on_paper(const ModelConfig& config, const std::function<void(const Param&)>& f);

}  // namespace mcpp
