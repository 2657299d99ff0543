#include "optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "nn/layer_name.h"
#include "nn/offload/host_memory.h"
#include "optimizer/muon.h"
#include "optimizer/stochastic_weights.h"
#include "tensor/dtype.h"
#include "tensor/ops/low_precision/quantize.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

const ParamAndGradBuffer& checked_front(std::span<ParamAndGradBuffer* const> buffers) {
  MCPP_CHECK(!buffers.empty(), "an optimizer needs a buffer");
  return *buffers.front();
}

/// Elements [begin, end) of a segment, of parameters of one layer, or of any layer if `layer` is "".
struct LayerRange {
  std::string layer;
  i64 begin, end;
};

/// Returns the ranges of the segment whose gradient this rank counts, relative to its begin. Padding is zero, so ranges
/// that are separated by padding are merged; with `by_layer`, only those of one layer.
std::vector<LayerRange> counted_ranges(const ParamAndGradBuffer& buffer, i64 begin, i64 end, const NormScope& scope,
                                       bool by_layer) {
  std::vector<LayerRange> ranges;
  bool was_counted = false;
  for (std::size_t i = 0; i < buffer.params().size(); ++i) {
    const ParamPart part = part_inside(buffer.plan(), i, begin, end);
    if (part.count <= 0) continue;
    const Param& param = *buffer.params()[i];
    const bool is_counted = !scope.is_counted || scope.is_counted(param);
    const i64 from = buffer.plan().offsets[i] + part.first - begin;
    std::string layer = by_layer ? layer_of(param.name) : std::string();
    if (is_counted && was_counted && ranges.back().layer == layer) {
      ranges.back().end = from + part.count;
    } else if (is_counted) {
      ranges.push_back({std::move(layer), from, from + part.count});
    }
    was_counted = is_counted;
  }
  return ranges;
}

void all_reduce_sum(std::span<Communicator* const> groups, Tensor& values) {
  for (Communicator* group : groups) {
    if (group->size() > 1) group->all_reduce(values, ReduceOp::Sum).wait();
  }
}

}  // namespace

StateStoreOptions state_store_options(const OptimizerConfig& config, Device& device, bool supports_snapshots) {
  return {.tier = config.offload,
          .offloaded_fraction = config.offload_fraction,
          .longest_segment = config.offload_segment_size / kQuantizedBlock * kQuantizedBlock,
          .host_threads = host_threads(device),
          .folder = config.offload_folder,
          .key = "optimizer.offload_folder",
          .supports_snapshots = supports_snapshots};
}

Optimizer::Optimizer(std::span<ParamAndGradBuffer* const> buffers, const OptimizerConfig& config, NormScope scope,
                     const MatrixGroups& holders, std::unique_ptr<StateStore> states,
                     std::unique_ptr<AsyncCopyEngine> copies)
    : config_(config),
      scope_(std::move(scope)),
      device_(checked_front(buffers).device()),
      dtype_(checked_front(buffers).dtype()),
      states_(states ? std::move(states) : std::make_unique<StateStore>(device_)),
      staged_update_(device_, dtype_, kept_weights(), copies ? std::move(copies) : make_async_copy_engine(device_)) {
  MCPP_CHECK(!config_.store_param_remainders || dtype_ == DType::BF16, "weights in ", name_of(dtype_),
             " cannot be upper halves of master weights");
  MCPP_CHECK(!config_.stochastic_rounding || (dtype_ == DType::BF16 && !config_.store_param_remainders && !has_ema()),
             "stochastic rounding needs weights in bf16, without remainders and without averaged weights");
  for (const ParamAndGradBuffer* buffer : buffers) {
    MCPP_CHECK(buffer->dtype() == dtype_, "buffers of one optimizer must have one type");
    for (const ShardSegment& shard : buffer->shard()) add_segments(*buffer, shard);
  }
  collect_norm_grads(buffers, /*by_layer=*/false);
  states_->reserve();
  needs_staging_ = !is_resident() || std::ranges::any_of(segments_, [](const UpdateSegment& segment) {
    return std::ranges::any_of(segment.forms, [](StorageForm form) { return form != StorageForm::Plain; });
  });
  if (rule_of(config_.optimizer).needs_matrices()) gather_matrices(buffers, holders);
  copy_model_to_master();
  start_ema();
}

std::vector<Optimizer::NormLayer> Optimizer::norm_layers() const {
  std::vector<NormLayer> result;
  for (const auto& [grid, layers] : norm_grads_)
    for (const auto& [name, gradients] : layers) result.push_back({grid, name});
  return result;
}

const UpdateRule& Optimizer::rule_of(OptimizerKind kind) {
  std::unique_ptr<UpdateRule>& rule = rules_[kind];
  if (!rule) rule = make_update_rule(kind, config_, dtype_);
  return *rule;
}

StorageForm Optimizer::master_form() const {
  if (config_.stochastic_rounding) return StorageForm::Model;
  return config_.store_param_remainders ? StorageForm::Remainder : StorageForm::Plain;
}

void Optimizer::gather_matrices(std::span<ParamAndGradBuffer* const> buffers, const MatrixGroups& holders) {
  const auto matrices_of = [this](const Param& param) {
    return rule_of(group_of(param, config_).rule).needs_matrices() ? muon_matrices(param, config_) : std::vector<Box>();
  };
  for (const GridKind grid : {GridKind::Dense, GridKind::Expert}) {
    std::vector<ParamAndGradBuffer*> grid_buffers;
    std::ranges::copy_if(buffers, std::back_inserter(grid_buffers), [&](const auto* b) { return b->grid() == grid; });
    if (grid_buffers.empty()) continue;  // empty on all ranks of this stage
    const auto group = holders.find(grid);
    Communicator* ranks = group == holders.end() ? nullptr : group->second;
    matrices_.push_back(std::make_unique<MatrixGatherer>(grid_buffers, matrices_of, ranks));
  }
}

void Optimizer::add_segments(const ParamAndGradBuffer& buffer, const ShardSegment& shard) {
  std::vector<ParamGroup> groups;
  for (const Param* param : buffer.params()) groups.push_back(group_of(*param, config_));
  const i64 max_segment = states_->longest_segment();
  std::map<OptimizerKind, std::vector<UpdateRun>> by_rule;  // runs of the incomplete segment
  for (const GroupRun& run : group_runs(buffer.plan(), groups, shard.begin, shard.begin + shard.count)) {
    std::vector<UpdateRun>& runs = by_rule[run.group.rule];
    for (i64 begin = run.begin; begin < run.end;) {
      const i64 offset = runs.empty() ? 0 : runs.back().offset + runs.back().count;
      const i64 count = max_segment > 0 ? std::min(run.end - begin, max_segment - offset) : run.end - begin;
      runs.push_back({.begin = begin - shard.begin, .count = count, .offset = offset, .group = run.group});
      begin += count;
      if (offset + count == max_segment) add_segment(buffer, shard, run.group.rule, std::exchange(runs, {}));
    }
  }
  for (auto& [kind, runs] : by_rule) {
    if (!runs.empty()) add_segment(buffer, shard, kind, std::move(runs));
  }
}

void Optimizer::add_segment(const ParamAndGradBuffer& buffer, const ShardSegment& shard, OptimizerKind kind,
                            std::vector<UpdateRun> runs) {
  UpdateSegment segment{
      .buffer = &buffer, .shard = shard, .rule = &rule_of(kind), .forms = {}, .runs = std::move(runs)};
  segment.forms = segment.rule->forms();
  if (has_master_copy()) segment.forms.insert(segment.forms.begin(), master_form());
  if (has_ema()) segment.forms.push_back(StorageForm::Plain);
  states_->add(segment.vectors(accumulate_dtype(dtype_)));
  segments_.push_back(std::move(segment));
}

/// Collects the gradient ranges that this rank counts in the norm, and allocates their sums of squares.
void Optimizer::collect_norm_grads(std::span<ParamAndGradBuffer* const> buffers, bool by_layer) {
  norm_grads_.clear();
  for (const auto& [grid, groups] : scope_.groups) norm_grads_[grid];
  for (const ParamAndGradBuffer* buffer : buffers) {
    for (const ShardSegment& shard : buffer->shard()) {
      const i64 last = shard.begin + shard.count;
      for (const auto& [layer, begin, end] : counted_ranges(*buffer, shard.begin, last, scope_, by_layer))
        norm_grads_[buffer->grid()][layer].push_back(shard.grads.flat(begin, end - begin));
    }
  }
  layer_squares_ = Tensor::zeros({std::ssize(norm_layers())}, DType::F64, device_, MemoryClass::Other);
}

StepResult Optimizer::step(double lr, double weight_decay, double grad_scale) {
  Tensor totals = Tensor::empty({2}, DType::F64, device_, MemoryClass::Workspace);
  write_values<double>({0.0, 1.0}, totals);
  const Tensor scalars = compute_update_scale(totals, {.grad_scale = grad_scale});
  update(lr, weight_decay, scalars.flat(StepScalars::kFactor, 1));
  const std::vector<double> values = read_values<double>(scalars);
  const bool is_applied = std::isfinite(values[StepScalars::kFactor]);
  if (is_applied) count_step();
  return {.grad_norm = values[StepScalars::kGradNorm], .is_skipped = !is_applied};
}

Tensor Optimizer::compute_update_scale(const Tensor& totals, StepRule rule) const {
  Tensor squares = Tensor::zeros({1}, DType::F64, device_, MemoryClass::Workspace);
  ops::fill_zero(layer_squares_);
  i64 first = 0;
  for (const auto& [grid, layers] : norm_grads_) {
    const auto count = static_cast<i64>(layers.size());
    i64 layer = first;
    for (const auto& [name, gradients] : layers) {
      Tensor layer_sum = layer_squares_.flat(layer++, 1);
      for (const Tensor& grads : gradients) ops::add_sum_of_squares(grads, layer_sum);
    }
    Tensor grid_sum = Tensor::zeros({1}, DType::F64, device_, MemoryClass::Workspace);
    if (count > 0) ops::column_sum(layer_squares_.flat(first, count).view({count, 1}), grid_sum, 0);
    first += count;
    if (const auto groups = scope_.groups.find(grid); groups != scope_.groups.end())
      all_reduce_sum(groups->second, grid_sum);
    ops::add_to(grid_sum, squares);
  }
  rule.clip_grad = config_.clip_grad;
  // Layouts shard the vector at different offsets, so their fp64 sums differ in the last bits. Rounding to fp32 hides
  // that, which keeps the clipped gradient, and therefore the entire run, bitwise identical.
  rule.round_norm_to_fp32 = dtype_ != DType::F64;
  Tensor scalars = Tensor::empty({StepScalars::kCount}, DType::F64, device_, MemoryClass::Workspace);
  ops::compute_update_scale(totals, squares, rule, scalars);
  return scalars;
}

void Optimizer::update(double lr, double weight_decay, const Tensor& factor, const RowScales& scales) {
  // Avoids fetching data for a skipped update.
  if (!is_resident() && !std::isfinite(read_values<double>(factor)[0])) return;
  std::map<Device*, Tensor> factors;  // by device of the parts, because copying it to the host blocks on the device
  const auto make_step = [&](const UpdatePart& part, const ParamGroup& group) {
    Tensor& local_factor = factors[&part.grads.device()];
    if (!local_factor.defined()) local_factor = copy_to(part.grads.device(), factor);
    return UpdateStep{.lr = lr * group.lr_mult,
                      .weight_decay = weight_decay * group.wd_mult,
                      .adam_beta1 = group.adam_beta1,
                      .adam_beta2 = group.adam_beta2,
                      .adam_eps = group.adam_eps,
                      .step = steps_ + 1,
                      .factor = local_factor};
  };
  if (!matrices_.empty()) {
    for_each_part(PassKind::Prepare, [&](const UpdateRule& rule, UpdatePart& part, const ParamGroup& group) {
      rule.prepare(part, make_step(part, group));
    });
    for (const auto& matrices : matrices_)
      matrices->transform([this](Tensor& matrix) { rule_of(config_.optimizer).transform(matrix); });
  }
  for_each_part(PassKind::Update, [&](const UpdateRule& rule, UpdatePart& part, const ParamGroup& group) {
    const UpdateStep step = make_step(part, group);
    rule.update(part, step);
    if (!scales.empty()) scale_rows(part, scales);
    if (config_.stochastic_rounding) round_weights(part, rounding_seed_, step.step);
    if (has_ema()) update_ema(part, config_, step);
  });
  states_->prefetch(segments_of(matrices_.empty() ? PassKind::Update : PassKind::Prepare));  // during the next pass
}

void Optimizer::for_each_part(PassKind kind, const UpdateFunction& f) {
  const std::vector<std::size_t> order = segments_of(kind);
  if (needs_staging_) return staged_update_.for_each_part(*states_, segments_, order, kind, f);
  for (const std::size_t s : order) {
    const UpdateSegment& segment = segments_[s];
    const std::vector<Tensor> vectors = states_->fetch(s);
    for (const UpdateRun& run : segment.runs) {
      std::vector<Tensor> states;
      for (const Tensor& vector : vectors) states.push_back(vector.flat(run.offset, run.count));
      const Tensor weights = segment.shard.params.flat(run.begin, run.count);
      const Tensor grads = segment.gradient(run.begin, run.count, accumulate_dtype(dtype_));
      UpdatePart part = make_update_part(weights, std::move(states), grads, kept_weights());
      part.buffer = segment.buffer, part.begin = segment.shard.begin + run.begin;
      f(*segment.rule, part, run.group);
    }
  }
}

std::vector<std::size_t> Optimizer::segments_of(PassKind kind) const {
  std::vector<std::size_t> order;
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    if (kind == PassKind::Update || segments_[s].rule->needs_matrices()) order.push_back(s);
  }
  return order;
}

bool Optimizer::is_resident() const {
  return states_->is_resident() &&
         std::ranges::all_of(segments_, [](const UpdateSegment& segment) { return !segment.shard.offload_store; });
}

void Optimizer::copy_model_to_master() {
  if (!stores_master()) return;
  for_each_part(PassKind::Update,
                [](const UpdateRule&, UpdatePart& part, const ParamGroup&) { ops::copy(part.model, part.weights); });
}

void Optimizer::copy_master_to_model() {
  if (!stores_master()) return;
  for_each_part(PassKind::Update,
                [](const UpdateRule&, UpdatePart& part, const ParamGroup&) { ops::copy(part.weights, part.model); });
}

void Optimizer::wait_for_gathers() const {
  std::set<const ParamAndGradBuffer*> waited;
  for (const UpdateSegment& segment : segments_)
    if (waited.insert(segment.buffer).second) segment.buffer->shard();
}

void Optimizer::start_ema() {
  if (!has_ema()) return;
  wait_for_gathers();
  for_each_part(PassKind::Update,
                [](const UpdateRule&, UpdatePart& part, const ParamGroup&) { mcpp::start_ema(part); });
}

void Optimizer::swap_ema() {
  MCPP_CHECK(has_ema(), "no averaged weights are kept");
  wait_for_gathers();
  for_each_part(PassKind::Update, [](const UpdateRule&, UpdatePart& part, const ParamGroup&) { mcpp::swap_ema(part); });
}

void Optimizer::visit_stored_state(const StoredStateVisitor& f) const {
  for (std::size_t s = 0; s < segments_.size(); ++s) {
    for (const UpdateRun& run : segments_[s].runs) visit_run(s, run, f);
  }
}

void Optimizer::visit_run(std::size_t index, const UpdateRun& run, const StoredStateVisitor& f) const {
  const UpdateSegment& segment = segments_[index];
  std::vector<std::string_view> names(segment.rule->states().begin(), segment.rule->states().end());
  if (has_master_copy()) names.insert(names.begin(), kMasterState);
  if (has_ema()) names.push_back(kEmaState);
  const DType wide = accumulate_dtype(dtype_);
  std::vector<StoredArray> vectors;
  for (std::size_t v = 0; v < segment.vectors(wide).size(); ++v) vectors.push_back(states_->stored(index, v));
  const std::vector<StoredArray> states = segment.states(vectors, wide);
  const BufferPlan& plan = segment.buffer->plan();
  const i64 begin = segment.shard.begin + run.begin;  // in the flat vectors
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const ParamPart part = part_inside(plan, i, begin, begin + run.count);
    if (part.count <= 0) continue;
    const i64 from = plan.offsets[i] + part.first;
    for (std::size_t k = 0; k < names.size(); ++k) {
      if (segment.forms[k] == StorageForm::Model) continue;
      StoredArray values = states[k].part(run.offset + from - begin, part.count);
      if (segment.forms[k] == StorageForm::Remainder)
        values = values.with_model(segment.shard.stored_weights(from - segment.shard.begin, part.count));
      f(names[k], *segment.buffer->params()[i], part.first, values);
    }
  }
}

}  // namespace mcpp
