#include "checkpoint/load/average.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "checkpoint/load/copy.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

void add_scaled(const Tensor& values, double factor, Tensor& sum) {
  const auto add = [&]<class T>(T scale) {
    T* sums = sum.data<T>();
    const T* addends = values.data<T>();
    for (i64 i = 0; i < sum.numel(); ++i) sums[i] += scale * addends[i];
  };
  sum.dtype() == DType::F64 ? add(factor) : add(static_cast<float>(factor));
}

}  // namespace

std::vector<double> uniform_coefficients(std::size_t count) {
  return std::vector<double>(count, 1 / static_cast<double>(count));
}

std::vector<double> ema_coefficients(std::size_t count, double decay) {
  std::vector<double> coefficients(count);
  double later = 1;  // product of the decays of later values
  for (std::size_t i = count; i-- > 0; later *= decay) coefficients[i] = i == 0 ? later : (1 - decay) * later;
  return coefficients;
}

AveragedWeights::AveragedWeights(std::vector<AverageTerm> terms, DType sum_dtype, std::string_view master_state)
    : terms_(std::move(terms)), sum_dtype_(sum_dtype) {
  MCPP_CHECK(!terms_.empty(), "an average needs a checkpoint");
  check_same_weights();
  for (const TensorEntry& tensor : terms_.front().reader->manifest().tensors) {
    if (!is_model_tensor(tensor.name)) continue;
    const std::string source = source_of(tensor.name, master_state);
    for (ShardSpec& piece : pieces_of(tensor)) {
      specs_.push_back(std::move(piece));
      sources_.push_back(source);
    }
  }
}

void AveragedWeights::check_same_weights() const {
  const CheckpointReader& first = *terms_.front().reader;
  for (const AverageTerm& term : terms_) {
    const CheckpointReader& other = *term.reader;
    for (const TensorEntry& tensor : first.manifest().tensors) {
      if (!is_model_tensor(tensor.name)) continue;
      const TensorEntry& found = tensor_entry(other.manifest(), tensor.name, other.directory());
      check_input(found.global == tensor.global && found.dtype == tensor.dtype, other.directory().string(), ": ",
                  tensor.name, " is ", name_of(found.dtype), " ", found.global, ", but ", name_of(tensor.dtype), " ",
                  tensor.global, " in ", first.directory().string(), "; only checkpoints of one model have an average");
    }
    for (const TensorEntry& tensor : other.manifest().tensors) {
      check_input(!is_model_tensor(tensor.name) || first.has(tensor.name), first.directory().string(),
                  " has no tensor ", tensor.name, ", which ", other.directory().string(),
                  " has; only checkpoints of one model have an average");
    }
  }
}

std::string AveragedWeights::source_of(const std::string& weight, std::string_view master_state) const {
  const std::string master = optimizer_tensor(master_state, weight.substr(model_tensor("").size()));
  const bool has_master =
      std::ranges::all_of(terms_, [&](const AverageTerm& term) { return term.reader->has(master); });
  return has_master ? master : weight;
}

Tensor AveragedWeights::data(std::size_t index) {
  const ShardSpec& spec = specs_[index];
  Tensor sum = Tensor::zeros({spec.numel()}, sum_dtype_, host_, MemoryClass::Other);
  Tensor values = Tensor::like(sum);
  for (const AverageTerm& term : terms_) {
    NamedShard part(sources_[index], spec.box, spec.flat_begin, spec.flat_end, values);
    term.reader->read(part, Conversion::Convert);
    check_input(std::isfinite(ops::sum_of_squares(values)), term.reader->directory().string(), ": ", sources_[index],
                " has NaN or infinite values; leave this checkpoint out of the average");
    add_scaled(values, term.coefficient, sum);
  }
  Tensor result = Tensor::empty({spec.numel()}, spec.dtype, host_, MemoryClass::Other);
  ops::copy(sum, result);
  return result;
}

}  // namespace mcpp
