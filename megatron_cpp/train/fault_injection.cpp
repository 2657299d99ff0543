#include "megatron_cpp/train/fault_injection.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <thread>

#include "base/strings.h"
#include "megatron_cpp/step/training_state.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Sets the first element of `t` to NaN.
void poison(const Tensor& t) {
  Tensor first = t.flat(0, 1);
  on_float(t.dtype(), [&]<class T>() { write_values(std::vector<T>{from_double<T>(kNan)}, first); });
}

void poison(const StoredArray& storage) {
  CpuDevice host;
  Tensor first = Tensor::zeros({1}, storage.dtype(), host, MemoryClass::Other);
  poison(first);
  storage.part(0, 1).write(first);
}

void poison_weights(TrainingState& state) {
  state.chunks().front().memory->visit_weights([](const Param&, i64, const Tensor& values) { poison(values); });
  state.optimizer().visit_stored_state([](std::string_view name, const Param&, i64, const auto& values) {
    if (name == kMasterState) poison(values);
  });
}

/// Skips the padding between parameters, which must stay zero.
void scale_gradients(TrainingState& state, double factor) {
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.memory->visit_grads([&](const Param&, i64, Tensor values) { ops::scale(values, factor); });
  }
}

/// Returns the index of the highest bit of the mantissa.
int mantissa_bit(DType type) {
  return type == DType::F64 ? 51 : type == DType::F32 ? 22 : type == DType::F16 ? 9 : 6;
}

/// Flips the highest bit of the mantissa of an element, which changes it by at most half of its size.
void flip_bit(const Tensor& values, i64 index) {
  Tensor element = values.flat(index % values.numel(), 1);
  std::vector<u8> bytes(static_cast<std::size_t>(element.bytes()));
  read_bytes(element, bytes.data());
  const int bit = mantissa_bit(values.dtype());
  bytes[static_cast<std::size_t>(bit / 8)] ^= static_cast<u8>(1U << (bit % 8));
  write_bytes(bytes.data(), element);
}

/// Flips a bit of the first weight of a linear layer that is on this rank. A second call restores it.
void flip_weight(TrainingState& state, i64 index) {
  for (const ParamAndGradBuffer* buffer : state.buffers()) buffer->shard();  // waits for gathers of the weights
  bool is_done = false;
  for (const TrainingState::Chunk& chunk : state.chunks()) {
    chunk.memory->visit_weights([&](const Param& param, i64, const Tensor& values) {
      if (is_done || param.matrices.empty() || values.numel() == 0) return;
      flip_bit(values, index);
      is_done = true;
    });
  }
}

void amplify(TrainingState& state) {
  constexpr double kFactor = 1000;
  std::vector<double> totals = read_values<double>(state.loss_totals());
  totals[0] *= kFactor;
  write_values(totals, state.loss_totals());
  scale_gradients(state, kFactor);
}

}  // namespace

bool FaultInjection::is_triggered(i64 iteration) const {
  return config_.kind != FaultKind::None && (config_.rank == -1 || config_.rank == rank_) &&
         iteration >= config_.iteration &&
         (config_.iterations == 0 || iteration < config_.iteration + config_.iterations);
}

void FaultInjection::trigger(i64 iteration) const {
  std::fprintf(stderr, "fault injection: %s on rank %d, iteration %lld, %s\n", enum_name(config_.kind).data(), rank_,
               static_cast<long long>(iteration), enum_name(config_.point).data());
  switch (config_.kind) {
    case FaultKind::Error:
      throw std::runtime_error("an injected fault");
    case FaultKind::Exit:
      std::_Exit(static_cast<int>(config_.exit_code));
    case FaultKind::Kill:
      ::raise(SIGKILL);
      break;
    case FaultKind::Hang:
      while (true) ::pause();
    default:
      break;
  }
}

void FaultInjection::before_step(i64 iteration) const {
  if (config_.kind == FaultKind::Slow && is_triggered(iteration))
    std::this_thread::sleep_for(std::chrono::duration<double>(config_.seconds));
  if (config_.point == FaultPoint::Step && ends_process(config_.kind) && is_triggered(iteration)) trigger(iteration);
}

double FaultInjection::loss_grad_factor(i64 iteration) const {
  return config_.kind == FaultKind::NanLocalGrad && is_triggered(iteration) ? kNan : 1;
}

void FaultInjection::run_passes(i64 iteration, TrainingState& state, const std::function<void()>& passes) {
  executions_ = iteration == executed_iteration_ ? executions_ + 1 : 1;
  executed_iteration_ = iteration;
  const bool is_affected = config_.kind == FaultKind::BitFlip && is_triggered(iteration) &&
                           (config_.executions == 0 || executions_ <= config_.executions);
  if (is_affected) flip_weight(state, executions_);
  passes();
  if (is_affected) flip_weight(state, executions_);
}

void FaultInjection::corrupt(i64 iteration, TrainingState& state) const {
  if (ends_process(config_.kind) || !is_triggered(iteration)) return;
  if (config_.kind == FaultKind::NanLoss) poison(state.loss_totals());
  // The full gradient, since the norm of some shards is counted on one rank only.
  if (config_.kind == FaultKind::NanGrad) scale_gradients(state, kNan);
  if (config_.kind == FaultKind::NanWeights) poison_weights(state);
  if (config_.kind == FaultKind::Spike) amplify(state);
}

SaveObserver FaultInjection::observer(i64 iteration) const {
  if (config_.point == FaultPoint::Step || !is_triggered(iteration)) return {};
  return [this, iteration](SavePoint save_point) {
    if (static_cast<int>(save_point) + 1 == static_cast<int>(config_.point)) trigger(iteration);
  };
}

}  // namespace mcpp
