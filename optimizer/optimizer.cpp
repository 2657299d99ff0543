#include "optimizer/optimizer.h"

#include <algorithm>
#include <cmath>

#include "tensor/processor.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

const ParamAndGradBuffer& checked_front(std::span<ParamAndGradBuffer* const> buffers) {
  MCPP_CHECK(!buffers.empty(), "an optimizer needs a buffer");
  return *buffers.front();
}

/// The ranges of the segment whose gradient this rank counts, relative to its begin. Padding is zero, so neighbours are
/// joined over it.
std::vector<std::pair<i64, i64>> counted_ranges(const ParamAndGradBuffer& buffer, i64 begin, i64 end,
                                                const NormScope& scope) {
  if (!scope.counts) return {{0, end - begin}};
  std::vector<std::pair<i64, i64>> ranges;
  bool joins = false;
  for (std::size_t i = 0; i < buffer.params().size(); ++i) {
    const ParamPart part = part_inside(buffer.plan(), i, begin, end);
    if (part.count <= 0) continue;
    const bool counts = scope.counts(*buffer.params()[i]);
    const i64 from = buffer.plan().offsets[i] + part.first - begin;
    if (counts && joins) {
      ranges.back().second = from + part.count;
    } else if (counts) {
      ranges.emplace_back(from, from + part.count);
    }
    joins = counts;
  }
  return ranges;
}

}  // namespace

std::string_view name_of(StateKind kind) {
  static constexpr std::string_view kNames[]{"master", "exp_avg", "exp_avg_sq", "momentum_buffer"};
  return kNames[static_cast<std::size_t>(kind)];
}

Optimizer::Optimizer(std::span<ParamAndGradBuffer* const> buffers, const OptimizerConfig& config, NormScope scope)
    : config_(config),
      scope_(std::move(scope)),
      device_(checked_front(buffers).device()),
      is_double_(checked_front(buffers).dtype() == DType::F64) {
  for (const ParamAndGradBuffer* buffer : buffers) {
    MCPP_CHECK(buffer->dtype() == buffers.front()->dtype(), "buffers of one optimizer must have one type");
    for (const ShardSegment& shard : buffer->shard()) segments_.push_back(make_segment(*buffer, shard));
  }
  copy_model_to_master();
}

Optimizer::Segment Optimizer::make_segment(const ParamAndGradBuffer& buffer, const ShardSegment& shard) const {
  const i64 count = shard.params.numel();
  const DType type = shard.grads.dtype();
  const auto state = [&] { return Tensor::zeros({count}, type, buffer.device(), MemoryClass::OptimizerState); };
  Segment segment{.buffer = &buffer,
                  .begin = shard.begin,
                  .model = shard.params,
                  .grads = shard.grads,
                  .master = shard.params.dtype() == type ? shard.params : state(),
                  .states = {},
                  .runs = decay_runs(buffer.plan(), shard.begin, shard.begin + count),
                  .counted = counted_ranges(buffer, shard.begin, shard.begin + count, scope_)};
  const std::size_t states = config_.optimizer == OptimizerKind::Adam ? 2 : 1;
  while (segment.states.size() < states) segment.states.push_back(state());
  return segment;
}

StepResult Optimizer::step(double lr, double weight_decay, double grad_scale) {
  Tensor totals = Tensor::empty({2}, DType::F64, device_, MemoryClass::Workspace);
  write_values<double>({0.0, 1.0}, totals);
  const Tensor numbers = judge(totals, {.grad_scale = grad_scale});
  update(lr, weight_decay, numbers.flat(StepNumbers::kFactor, 1));
  const std::vector<double> values = read_values<double>(numbers);
  const bool taken = std::isfinite(values[StepNumbers::kFactor]);
  if (taken) count_step();
  return {.grad_norm = values[StepNumbers::kGradNorm], .skipped = !taken, .lr = lr, .weight_decay = weight_decay};
}

Tensor Optimizer::judge(const Tensor& totals, StepRule rule) const {
  const ProfileRange range(device_, "norm of the gradient");
  Tensor squares = Tensor::zeros({1}, DType::F64, device_, MemoryClass::Workspace);
  for (const Segment& segment : segments_) {
    for (const auto& [begin, end] : segment.counted)
      ops::add_sum_of_squares(segment.grads.flat(begin, end - begin), squares);
  }
  for (Communicator* group : scope_.groups) {
    if (group->size() > 1) group->all_reduce(squares, ReduceOp::Sum).wait();
  }
  rule.clip_grad = config_.clip_grad;
  // Layouts cut the vector at other places, so their fp64 sums differ in the last bits. Rounding to fp32 hides that, so
  // that the clipped gradient, and with it the whole run, keeps the same bits.
  rule.rounds_norm = !is_double_;
  Tensor numbers = Tensor::empty({StepNumbers::kCount}, DType::F64, device_, MemoryClass::Workspace);
  ops::judge_step(totals, squares, rule, numbers);
  return numbers;
}

void Optimizer::update(double lr, double weight_decay, const Tensor& factor) {
  const ProfileRange range(device_, "optimizer");
  for (Segment& segment : segments_) {
    for (const DecayRun& run : segment.runs) update(segment, run, lr, run.decays ? weight_decay : 0.0, factor);
  }
}

void Optimizer::update(Segment& segment, const DecayRun& run, double lr, double weight_decay, const Tensor& factor) {
  const auto part = [&](const Tensor& t) { return t.flat(run.begin - segment.begin, run.end - run.begin); };
  Tensor master = part(segment.master), model = part(segment.model), first = part(segment.states[0]);
  const Tensor grads = part(segment.grads);
  Tensor* copy = segment.has_master_copy() ? &model : nullptr;
  if (config_.optimizer == OptimizerKind::Sgd) {
    const SgdStep step{.lr = lr, .momentum = config_.sgd_momentum, .weight_decay = weight_decay, .factor = factor};
    return ops::sgd(master, first, grads, step, copy);
  }
  Tensor second = part(segment.states[1]);
  const AdamWStep step{.lr = lr,
                       .beta1 = config_.adam_beta1,
                       .beta2 = config_.adam_beta2,
                       .eps = config_.adam_eps,
                       .weight_decay = weight_decay,
                       .step = steps_ + 1,
                       .factor = factor};
  ops::adamw(master, first, second, grads, step, copy);
}

void Optimizer::copy_model_to_master() {
  for (Segment& segment : segments_) {
    if (segment.has_master_copy()) ops::copy(segment.model, segment.master);
  }
}

void Optimizer::copy_master_to_model() {
  for (Segment& segment : segments_) {
    if (segment.has_master_copy()) ops::copy(segment.master, segment.model);
  }
}

void Optimizer::visit_state(const StateVisitor& f) const {
  const bool is_adam = config_.optimizer == OptimizerKind::Adam;
  const StateKind first_kind = is_adam ? StateKind::ExpAvg : StateKind::Momentum;
  for (const Segment& segment : segments_) {
    const ParamAndGradBuffer& buffer = *segment.buffer;
    for (std::size_t i = 0; i < buffer.params().size(); ++i) {
      const ParamPart part = part_inside(buffer.plan(), i, segment.begin, segment.begin + segment.model.numel());
      if (part.count <= 0) continue;
      const i64 at = buffer.plan().offsets[i] + part.first - segment.begin;
      const auto visit = [&](StateKind kind, const Tensor& t) {
        f(kind, *buffer.params()[i], part.first, t.flat(at, part.count));
      };
      if (segment.has_master_copy()) visit(StateKind::Master, segment.master);
      visit(first_kind, segment.states[0]);
      if (is_adam) visit(StateKind::ExpAvgSq, segment.states[1]);
    }
  }
}

}  // namespace mcpp
