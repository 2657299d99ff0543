#include "model/layers/attention_logits.h"

#include <limits>

#include "tensor/dtype.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {

void AttentionLogits::record(bool is_recording) {
  is_recording_ = is_recording;
  if (!is_recording) return;
  const DType dtype = accumulate_dtype(context_.dtype);
  if (!largest_.defined()) largest_ = Tensor::empty({heads_}, dtype, context_.device, MemoryClass::Other);
  on_float(dtype, [&]<class T>() {
    const std::vector<T> lowest(static_cast<std::size_t>(heads_),
                                from_double<T>(-std::numeric_limits<double>::infinity()));
    write_values(std::span<const T>(lowest), largest_);
  });
}

std::vector<double> AttentionLogits::values() const {
  std::vector<double> result(static_cast<std::size_t>(heads_), -std::numeric_limits<double>::infinity());
  if (!is_recording_) return result;
  on_float(largest_.dtype(), [&]<class T>() {
    const std::vector<T> values = read_values<T>(largest_);
    for (std::size_t i = 0; i < values.size(); ++i) result[i] = to_double(values[i]);
  });
  return result;
}

}  // namespace mcpp
