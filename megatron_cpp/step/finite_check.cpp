#include "megatron_cpp/step/finite_check.h"

#include <cmath>

#include "base/strings.h"
#include "comm/object_collectives.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

template <class F>
void for_each_weight(const TrainingState& state, F&& f) {
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.memory->visit_weights([&](const Param& param, i64, const Tensor& values) { f(param, values); });
  }
}

/// Squares of fp32 values are added in fp64, where they cannot overflow.
std::string find_on_this_rank(const TrainingState& state, Device& device) {
  Tensor sum = Tensor::zeros({1}, DType::F64, device, MemoryClass::Workspace);
  for_each_weight(state, [&](const Param&, const Tensor& values) { ops::add_sum_of_squares(values, sum); });
  std::string found;
  if (std::isfinite(read_values<double>(sum)[0])) return found;
  for_each_weight(state, [&](const Param& param, const Tensor& values) {
    if (found.empty() && !std::isfinite(ops::sum_of_squares(values))) found = param.name;
  });
  return found;
}

}  // namespace

std::string find_nonfinite_weight(const TrainingState& state, Communicator& world, Device& device) {
  const std::vector<std::string> found = run_on_all_ranks(world, [&] { return find_on_this_rank(state, device); });
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    if (!found[rank].empty()) return str("rank ", rank, ": ", found[rank]);
  }
  return "";
}

}  // namespace mcpp
