#include "optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "tensor/transfer.h"
#include "tensor/wide.h"

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

void sum_over(std::span<Communicator* const> groups, Tensor& values) {
  for (Communicator* group : groups) {
    if (group->size() > 1) group->all_reduce(values, ReduceOp::Sum).wait();
  }
}

}  // namespace

Optimizer::Optimizer(std::span<ParamAndGradBuffer* const> buffers, const OptimizerConfig& config, NormScope scope,
                     const MatrixHolders& holders, std::unique_ptr<StateStore> states)
    : config_(config),
      scope_(std::move(scope)),
      device_(checked_front(buffers).device()),
      dtype_(checked_front(buffers).dtype()),
      states_(states ? std::move(states) : make_resident_states(wide(dtype_), device_)) {
  for (const auto& [grid, groups] : scope_.groups) counted_[grid];
  for (const ParamAndGradBuffer* buffer : buffers) {
    MCPP_CHECK(buffer->dtype() == dtype_, "buffers of one optimizer must have one type");
    for (const ShardSegment& shard : buffer->shard()) {
      add_segments(*buffer, shard);
      count_in_norm(*buffer, shard);
    }
  }
  if (rule_of(config_.optimizer).needs_matrices()) gather_matrices(buffers, holders);
  copy_model_to_master();
}

const UpdateRule& Optimizer::rule_of(OptimizerKind kind) {
  std::unique_ptr<UpdateRule>& rule = rules_[kind];
  if (!rule) rule = make_update_rule(kind, config_, dtype_);
  return *rule;
}

void Optimizer::gather_matrices(std::span<ParamAndGradBuffer* const> buffers, const MatrixHolders& holders) {
  const auto needs_matrices = [this](const Param& param) {
    return rule_of(group_of(param, config_).rule).needs_matrices();
  };
  for (const GridKind grid : {GridKind::Dense, GridKind::Expert}) {
    std::vector<ParamAndGradBuffer*> of_grid;
    std::ranges::copy_if(buffers, std::back_inserter(of_grid), [&](const auto* b) { return b->grid() == grid; });
    if (of_grid.empty()) continue;  // on all ranks that hold this stage
    const auto group = holders.find(grid);
    Communicator* ranks = group == holders.end() ? nullptr : group->second;
    matrices_.push_back(std::make_unique<WholeMatrices>(of_grid, needs_matrices, ranks));
  }
}

void Optimizer::add_segments(const ParamAndGradBuffer& buffer, const ShardSegment& shard) {
  std::vector<ParamGroup> groups;
  for (const Param* param : buffer.params()) groups.push_back(group_of(*param, config_));
  std::map<OptimizerKind, std::vector<Run>> by_rule;
  for (const GroupRun& run : group_runs(buffer.plan(), groups, shard.begin, shard.begin + shard.params.numel())) {
    std::vector<Run>& runs = by_rule[run.group.rule];
    const i64 at = runs.empty() ? 0 : runs.back().at + runs.back().count;
    runs.push_back({.begin = run.begin - shard.begin, .count = run.end - run.begin, .at = at, .group = run.group});
  }
  for (auto& [kind, runs] : by_rule) {
    const UpdateRule& rule = rule_of(kind);
    states_->add(rule.states().size() + (has_master_copy() ? 1 : 0), runs.back().at + runs.back().count);
    segments_.push_back({.buffer = &buffer,
                         .begin = shard.begin,
                         .model = shard.params,
                         .grads = shard.grads,
                         .rule = &rule,
                         .runs = std::move(runs)});
  }
}

/// The ranges whose gradient this rank counts. Padding is zero, so neighbours are joined over it.
void Optimizer::count_in_norm(const ParamAndGradBuffer& buffer, const ShardSegment& shard) {
  for (const auto& [begin, end] : counted_ranges(buffer, shard.begin, shard.begin + shard.params.numel(), scope_))
    counted_[buffer.grid()].push_back(shard.grads.flat(begin, end - begin));
}

UpdatePart Optimizer::part_of(const Segment& segment, const Run& run, std::span<const Tensor> states) const {
  UpdatePart part{.weights = segment.model.flat(run.begin, run.count),
                  .states = {},
                  .grads = segment.grads.flat(run.begin, run.count),
                  .model = {}};
  for (const Tensor& state : states) part.states.push_back(state.flat(run.at, run.count));
  if (has_master_copy()) {
    part.model = std::exchange(part.weights, part.states.front());
    part.states.erase(part.states.begin());
  }
  return part;
}

template <class F>
void Optimizer::for_each_part(F&& f, bool of_matrices_only) {
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    if (of_matrices_only && !segments_[s].rule->needs_matrices()) continue;
    const std::vector<Tensor> states = states_->fetch(s);
    for (const Run& run : segments_[s].runs) {
      UpdatePart part = part_of(segments_[s], run, states);
      f(*segments_[s].rule, part, run.group);
    }
    states_->drop(s);
  }
}

StepResult Optimizer::step(double lr, double weight_decay, double grad_scale) {
  Tensor totals = Tensor::empty({2}, DType::F64, device_, MemoryClass::Workspace);
  write_values<double>({0.0, 1.0}, totals);
  const Tensor numbers = decide_update(totals, {.grad_scale = grad_scale});
  update(lr, weight_decay, numbers.flat(StepNumbers::kFactor, 1));
  const std::vector<double> values = read_values<double>(numbers);
  const bool taken = std::isfinite(values[StepNumbers::kFactor]);
  if (taken) count_step();
  return {.grad_norm = values[StepNumbers::kGradNorm], .skipped = !taken, .lr = lr, .weight_decay = weight_decay};
}

Tensor Optimizer::decide_update(const Tensor& totals, StepRule rule) const {
  Tensor squares = Tensor::zeros({1}, DType::F64, device_, MemoryClass::Workspace);
  for (const auto& [grid, gradients] : counted_) {
    Tensor of_grid = Tensor::zeros({1}, DType::F64, device_, MemoryClass::Workspace);
    for (const Tensor& grads : gradients) ops::add_sum_of_squares(grads, of_grid);
    if (const auto groups = scope_.groups.find(grid); groups != scope_.groups.end()) sum_over(groups->second, of_grid);
    ops::add_to(of_grid, squares);
  }
  rule.clip_grad = config_.clip_grad;
  // Layouts cut the vector at other places, so their fp64 sums differ in the last bits. Rounding to fp32 hides that, so
  // that the clipped gradient, and with it the whole run, keeps the same bits.
  rule.rounds_norm = dtype_ != DType::F64;
  Tensor numbers = Tensor::empty({StepNumbers::kCount}, DType::F64, device_, MemoryClass::Workspace);
  ops::decide_update(totals, squares, rule, numbers);
  return numbers;
}

void Optimizer::update(double lr, double weight_decay, const Tensor& factor) {
  const auto step_of = [&](const ParamGroup& group) {
    return UpdateStep{
        .lr = lr * group.lr_mult, .weight_decay = weight_decay * group.wd_mult, .step = steps_ + 1, .factor = factor};
  };
  if (!matrices_.empty()) {
    for_each_part(
        [&](const UpdateRule& rule, UpdatePart& part, const ParamGroup& group) { rule.prepare(part, step_of(group)); },
        /*of_matrices_only=*/true);
    for (const auto& matrices : matrices_)
      matrices->transform([this](Tensor& matrix) { rule_of(config_.optimizer).transform(matrix); });
  }
  for_each_part(
      [&](const UpdateRule& rule, UpdatePart& part, const ParamGroup& group) { rule.update(part, step_of(group)); });
}

void Optimizer::copy_model_to_master() {
  if (!has_master_copy()) return;
  for_each_part([](const UpdateRule&, UpdatePart& part, const ParamGroup&) { ops::copy(part.model, part.weights); });
}

void Optimizer::copy_master_to_model() {
  if (!has_master_copy()) return;
  for_each_part([](const UpdateRule&, UpdatePart& part, const ParamGroup&) { ops::copy(part.weights, part.model); });
}

void Optimizer::visit_state(const StateVisitor& f) const {
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    for (const Run& run : segments_[s].runs) visit_run(segments_[s], run, states_->at_rest(s), f);
  }
}

void Optimizer::visit_run(const Segment& segment, const Run& run, std::span<const Tensor> states,
                          const StateVisitor& f) const {
  std::vector<std::string_view> names(segment.rule->states().begin(), segment.rule->states().end());
  if (has_master_copy()) names.insert(names.begin(), kMasterState);
  const BufferPlan& plan = segment.buffer->plan();
  const i64 begin = segment.begin + run.begin;  // in the flat vectors
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const ParamPart part = part_inside(plan, i, begin, begin + run.count);
    if (part.count <= 0) continue;
    const i64 at = run.at + plan.offsets[i] + part.first - begin;
    for (std::size_t k = 0; k < names.size(); ++k)
      f(names[k], *segment.buffer->params()[i], part.first, states[k].flat(at, part.count));
  }
}

}  // namespace mcpp
