#include "megatron_cpp/step/training_state.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "optimizer/param_group.h"
#include "parallel/pp/schedule.h"
#include "parallel/pp/simulate.h"
#include "parallel/reduce_scalar.h"
#include "parallel/stages.h"
#include "tensor/dtype.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

// Layout of the values that ranks exchange for a step: StepScalars, StopRequest, whether any rank aborted, and the
// losses and targets of the layers of multi-token prediction, then the sum of z-losses.
constexpr i64 kStepStopRequest = StepScalars::kCount, kAborted = kStepStopRequest + StopRequest::kCount,
              kMtpTotals = kAborted + 1;
// Layout for an evaluation: totals_, then StopRequest.
constexpr i64 kEvaluationStopRequest = 2, kNumEvaluationValues = kEvaluationStopRequest + StopRequest::kCount;

StopRequest stop_request_at(i64 offset, const std::vector<double>& values) {
  return StopRequest::of(std::span(values).subspan(static_cast<std::size_t>(offset)).first<StopRequest::kCount>());
}

/// Returns the mean of `count` values; 0 without any, such as the loss of a batch without targets.
double mean_of(double sum, double count) {
  return count == 0 ? 0 : sum / count;
}

std::unique_ptr<ChunkParamBuffers> allocate(GPTModel& model, const ParallelState& parallel,
                                            const ParamOffload& offload) {
  std::vector<UnitParam> params;
  model.visit([&](Param& param, int unit) { params.push_back({&param, unit}); });
  const ModelContext& context = model.context();
  return std::make_unique<ChunkParamBuffers>(
      params, context.dtype, context.device, [&](GridKind grid) { return parallel.gradient_groups(grid); },
      parallel.layout, offload);
}

std::unique_ptr<AmaxHistories> make_amax_histories(const ModelContext& context) {
  if (!context.fp8.uses(GemmRecipe::Delayed)) return nullptr;
  return std::make_unique<AmaxHistories>(context.fp8.delayed);
}

/// Returns the ranks that together update one copy of a stage's weights.
MatrixGroups stage_groups(const ParallelState& p) {
  const bool is_sharded = p.layout.zero_stage > 0;
  MatrixGroups holders{{GridKind::Dense, is_sharded ? p.tp_dp_shard.get() : p.tp.get()}};
  if (p.expert_tp) holders[GridKind::Expert] = is_sharded ? p.expert_tp_dp_shard.get() : p.expert_tp.get();
  return holders;
}

}  // namespace

TrainingState::TrainingState(const ModelContext& context, const OptimizerConfig& optimizer, ParallelState& parallel,
                             const TrainingStorage& storage)
    : parallel_(parallel),
      device_(context.device),
      profiler_(context.profiler),
      activations_(make_activation_store(storage.activations, device_)),
      interleaver_(profiler_),
      amax_histories_(make_amax_histories(context)),
      chunks_(make_chunks(context, storage.params)),
      optimizer_(
          buffers(), optimizer, make_norm_scope(parallel, parallel.layout.zero_stage > 0), stage_groups(parallel),
          std::make_unique<StateStore>(device_, state_store_options(optimizer, device_, storage.saves_asynchronously))),
      loss_scale_(optimizer, context.dtype == DType::F16),
      partial_gradients_(buffers(), {*parallel_.tp, parallel_.embedding.get()}),
      routers_(context.config, models(), parallel_.world, device_),
      logits_(context.config, optimizer, models(), parallel_.world, device_),
      totals_(Tensor::zeros({2 + 2 * context.config.mtp_num_layers + 1}, DType::F64, device_, MemoryClass::Other)),
      step_scalars_(Tensor::zeros({kMtpTotals + totals_.numel() - 2}, DType::F64, device_, MemoryClass::Other)),
      step_readback_(make_async_readback(device_, step_scalars_.numel())),
      step_(*parallel_.layer_group) {
  optimizer_.set_rounding_seed(context.seed);
  if (amax_histories_) amax_histories_->allocate(device_);
  for (auto* waits : {&pipeline_wait_timer_, &agreement_wait_timer_}) *waits = make_device_wait_timer(device_);
  for (auto& copy : evaluation_readbacks_) copy = make_async_readback(device_, kNumEvaluationValues);
}

std::vector<TrainingState::Chunk> TrainingState::make_chunks(ModelContext context, const ParamOffload& offload) {
  context.activations = activations_.get();
  context.amax_histories = amax_histories_.get();
  const Layout& layout = parallel_.layout;
  const std::vector<StageContents> pipeline = split_stages(layout, context.config.num_layers);
  std::vector<StageContents> stages;
  for (int c = 0; c < layout.chunks; ++c)
    stages.push_back(pipeline[static_cast<std::size_t>(layout.stage_map().stage_of(parallel_.coordinates.pp, c))]);
  std::vector<Chunk> chunks;
  for (std::unique_ptr<GPTModel>& model : mcpp::make_chunks(context, stages)) {
    Chunk& chunk = chunks.emplace_back();
    chunk.model = std::move(model);
    chunk.memory = allocate(*chunk.model, parallel_, offload);
    chunk.memory->visit_weights(
        [&](const Param& param, i64 begin, Tensor values) { initialize(param, context.seed, begin, values); });
    chunk.memory->publish();
    chunk.model->set_memory(*chunk.memory);
    chunk.stage = std::make_unique<ModelStage>(*chunk.model, static_cast<int>(chunks.size()) - 1,
                                               layout.overlap_moe_expert_parallel_comm ? &interleaver_ : nullptr);
    if (context.graph_warmup_steps > 0) chunk.stage->record_passes(context.graph_warmup_steps);
  }
  return chunks;
}

std::vector<ParamAndGradBuffer*> TrainingState::buffers() const {
  std::vector<ParamAndGradBuffer*> list;
  for (const Chunk& chunk : chunks_) {
    for (ParamAndGradBuffer* buffer : chunk.memory->buffers()) list.push_back(buffer);
  }
  return list;
}

OffloadedBytesByClass TrainingState::offloaded_bytes() const {
  OffloadedBytesByClass offload_store;
  const auto store_of = [&](MemoryClass c) -> OffloadedBytes& { return offload_store[static_cast<std::size_t>(c)]; };
  store_of(MemoryClass::OptimizerState) = optimizer_.offloaded_state_bytes();
  if (activations_) store_of(MemoryClass::Activations) = activations_->peak();
  std::set<const StateStore*> counted;
  for (const ParamAndGradBuffer* buffer : buffers()) {
    for (const ShardSegment& segment : buffer->shard()) {
      if (segment.offload_store && counted.insert(segment.offload_store).second)
        store_of(MemoryClass::Params) += segment.offload_store->offloaded_bytes();
    }
  }
  return offload_store;
}

std::vector<GPTModel*> TrainingState::models() const {
  std::vector<GPTModel*> list;
  for (const Chunk& chunk : chunks_) list.push_back(chunk.model.get());
  return list;
}

void TrainingState::swap_ema() {
  optimizer_.swap_ema();
  publish_weights();
}

void TrainingState::publish_weights() {
  for (const Chunk& chunk : chunks_) chunk.memory->publish();
  if (amax_histories_) amax_histories_->update_scales();
}

/// Builds the lowered schedule. The first `serialized_microbatches` microbatches run one at a time.
Schedule TrainingState::build_schedule(std::size_t microbatches, bool is_training, int serialized_microbatches) const {
  const Schedule schedule = parallel_.layout.make_schedule(static_cast<i64>(microbatches));
  Schedule lowered =
      lower(serialize_first_microbatches(is_training ? schedule : forward_schedule(schedule), serialized_microbatches));
  simulate(lowered);  // fails on a deadlock instead of hanging
  return lowered;
}

void TrainingState::run(std::span<const MicroBatch> batches, bool is_training, double grad_scale,
                        const LogitsRequest* request) {
  ops::fill_zero(totals_);
  const auto [it, is_first] = schedules_.try_emplace({batches.size(), is_training});
  if (is_first) it->second = build_schedule(batches.size(), is_training, /*serialized_microbatches=*/0);
  // Kernels are loaded during the microbatch that sets the gradients and the next one, which adds to them.
  const bool loads_kernels = is_first && pipeline_wait_timer_;
  Schedule first;
  if (loads_kernels) first = build_schedule(batches.size(), is_training, /*serialized_microbatches=*/2);
  const Schedule& schedule = loads_kernels ? first : it->second;
  step_.begin(schedule.passes(parallel_.coordinates.pp), static_cast<i64>(batches.size()));
  std::vector<PipelineStage*> stages;
  for (const Chunk& chunk : chunks_) {
    chunk.stage->begin(batches, is_training, grad_scale, totals_, step_);
    if (request) chunk.stage->request_logits(request->position, request->row);
    stages.push_back(chunk.stage.get());
  }
  pipeline_waiting_ += run_schedule(schedule, *parallel_.pp, *parallel_.pp_backward, stages,
                                    {.profiler = profiler_,
                                     .wait_timer = pipeline_wait_timer_.get(),
                                     .serializes_receives = loads_kernels,
                                     .interleaver = &interleaver_})
                           .waiting;
}

void TrainingState::sum_over_ranks(Tensor& totals) {
  // Stages without the output add zero, which keeps the sum bitwise identical to a run without pipeline parallelism.
  parallel_.dp_cp->all_reduce(totals, ReduceOp::Sum).wait();
  if (parallel_.pp->size() == 1) return;
  // Stages that finish early wait here.
  const WaitRange range(pipeline_waiting_, pipeline_wait_timer_.get(), profiler_, "pipeline-end", RangeKind::Bubble);
  parallel_.pp->all_reduce(totals, ReduceOp::Sum).wait();
}

/// Counts all tokens, whether or not they are targets: known to every rank before the forward pass.
i64 TrainingState::tokens_of_global_batch(std::span<const MicroBatch> batches) const {
  const auto samples = static_cast<i64>(batches.size() * batches.front().samples.size());
  return samples * parallel_.dp->size() * chunks_.front().model->context().config.seq_length;
}

void TrainingState::set_exact_reduction(bool is_exact) {
  for (const Chunk& chunk : chunks_) chunk.memory->set_exact_reduction(is_exact);
}

void TrainingState::backward(std::span<const MicroBatch> batches, double loss_grad_factor) {
  for (const Chunk& chunk : chunks_) chunk.memory->clear_grads();
  routers_.clear();
  if (amax_histories_) amax_histories_->begin_step();
  const bool records_logits = records_logits_ || logits_.has_clip();
  logits_.record(records_logits);
  for (const Chunk& chunk : chunks_) chunk.stage->set_records_logits(records_logits);
  tokens_ = tokens_of_global_batch(batches);
  grad_scale_ = is_outcome_pending_ ? loss_scale_.expected_factor(tokens_) : loss_scale_.factor(tokens_);
  {
    const ProfileRange range(device_, profiler_, "forward-backward", Detail::Phase);
    run(batches, /*is_training=*/true, grad_scale_ * loss_grad_factor);
  }
  const ProfileRange range(device_, profiler_, "all-grads-sync", Detail::Phase);
  for (const Chunk& chunk : chunks_) chunk.model->add_shared_gradient();
  partial_gradients_.finish();
  has_gradients_ = true;
}

void TrainingState::update(const StepOptions& options) {
  MCPP_CHECK(has_gradients_, "update() was called without backward()");
  MCPP_CHECK(!is_outcome_pending_, "update() before the outcome() of the previous step");
  MCPP_CHECK(!needs_backward_rerun(), "update() with gradients of a different loss scale");
  has_gradients_ = false;
  is_outcome_pending_ = true;
  const ProfileRange range(device_, profiler_, "optimizer", Detail::Phase);
  sum_over_ranks(totals_);
  // Gradients are of the summed loss; dividing by the tokens of the global batch makes them layout-independent.
  Tensor decided = step_scalars_.flat(0, StepScalars::kCount);
  StepRule rule = options.rule;
  rule.grad_scale = 1 / grad_scale_;
  {
    const ProfileRange norm(device_, profiler_, "optimizer-clip-main-grad", Detail::Microbatch);
    ops::copy(optimizer_.compute_update_scale(totals_.flat(0, 2), rule), decided);
  }
  updated_grad_scale_ = grad_scale_;
  sample_losses_.clear();
  for (const Chunk& chunk : chunks_) {
    std::vector<SampleLosses> losses = chunk.stage->take_sample_losses();
    std::ranges::move(losses, std::back_inserter(sample_losses_));
  }
  const i64 count = totals_.numel() - 2;
  Tensor more_totals = step_scalars_.flat(kMtpTotals, count);
  ops::copy(totals_.flat(2, count), more_totals);
  write_stop_request(kStepStopRequest, step_scalars_);
  Tensor aborted = step_scalars_.flat(kAborted, 1);
  write_values<double>({double(step_.is_aborted())}, aborted);
  if (step_.is_aborted()) {
    Tensor factor = step_scalars_.flat(StepScalars::kFactor, 1);
    write_values<double>({std::numeric_limits<double>::infinity()}, factor);
  }
  // If one rank detects a problem that others do not, because its memory or a link failed, no rank may update. All
  // later decisions use the reduced values so that ranks agree.
  {
    const WaitRange agreement(agreement_, agreement_wait_timer_.get(), profiler_, "world all_reduce",
                              RangeKind::Communication);
    parallel_.world.all_reduce(step_scalars_, ReduceOp::Max).wait();
  }
  {
    const ProfileRange inner(device_, profiler_, "optimizer-inner-step", Detail::Microbatch);
    optimizer_.update(options.lr, options.weight_decay, step_scalars_.flat(StepScalars::kFactor, 1), clip_logits());
    for (const Chunk& chunk : chunks_) chunk.memory->end_step(step_scalars_.flat(StepScalars::kFactor, 1));
  }
  routers_.sum_over_ranks();
  end_step_of_layers();
  step_readback_->start(step_scalars_);
  const ProfileRange gather_range(device_, profiler_, "params-all-gather", Detail::Microbatch);
  publish_weights();
}

void TrainingState::end_step_of_layers() {
  if (!routers_.has_state() && !amax_histories_) return;  // Avoids waiting for the device.
  if (!std::isfinite(read_values<double>(step_scalars_)[StepScalars::kFactor])) return;
  if (routers_.has_state()) routers_.end_step();
  if (!amax_histories_) return;
  const std::array<Communicator*, 2> ranks_of_stage{parallel_.tp.get(), parallel_.dp_cp.get()};
  amax_histories_->end_step(ranks_of_stage);
}

/// Combines the attention logits of all ranks. Returns the scaling by QK-clip, which a skipped step does not apply.
RowScales TrainingState::clip_logits() {
  logits_.max_over_ranks();
  RowScales scales;
  if (logits_.has_clip() && std::isfinite(read_values<double>(step_scalars_)[StepScalars::kFactor]))
    scales = logits_.clip();
  layer_logits_ = logits_.layers();
  return scales;
}

void TrainingState::write_stop_request(i64 offset, Tensor& values) const {
  Tensor to = values.flat(offset, StopRequest::kCount);
  const auto local = step_.stop_request().values();
  write_values(std::span<const double>(local), to);
}

StepOutcome TrainingState::outcome() {
  MCPP_CHECK(std::exchange(is_outcome_pending_, false), "outcome() was called without update()");
  const std::vector<double> values = step_readback_->values();
  stop_request_ = stop_request_at(kStepStopRequest, values);
  if (values[kAborted] != 0) return {.is_skipped = true, .is_aborted = true};
  const bool is_skipped = !std::isfinite(values[StepScalars::kFactor]);
  if (!is_skipped) optimizer_.count_step();
  const auto status = static_cast<StepStatus>(values[StepScalars::kStatus]);
  Overflow overflow = loss_scale_.update(status == StepStatus::NotFinite);
  if (!std::isfinite(values[StepScalars::kLoss])) overflow = Overflow::Final;  // the loss itself is not scaled
  std::vector<double> mtp_losses;
  for (std::size_t i = kMtpTotals; i + 1 < values.size(); i += 2)
    mtp_losses.push_back(mean_of(values[i], values[i + 1]));
  return {.loss = values[StepScalars::kLoss],
          .tokens = static_cast<i64>(values[StepScalars::kTargets]),
          .mtp_losses = std::move(mtp_losses),
          .output_z_loss = mean_of(values.back(), values[StepScalars::kTargets]),
          .grad_norm = values[StepScalars::kGradNorm],
          .status = status,
          .is_skipped = is_skipped,
          .overflow = overflow,
          .is_aborted = false,
          .experts = routers_.layer_stats(),
          .logits = layer_logits_};
}

TrainingState::Measurement TrainingState::measure() {
  MCPP_CHECK(has_gradients_, "measure() was called without backward()");
  Tensor totals = Tensor::like(totals_);
  ops::copy(totals_, totals);
  sum_over_ranks(totals);
  Tensor scalars = Tensor::zeros({StepScalars::kCount + 1}, DType::F64, device_, MemoryClass::Workspace);
  Tensor decided = scalars.flat(0, StepScalars::kCount), aborted = scalars.flat(StepScalars::kCount, 1);
  StepRule rule;
  rule.grad_scale = 1 / grad_scale_;
  ops::copy(optimizer_.compute_update_scale(totals.flat(0, 2), rule), decided);
  write_values<double>({double(step_.is_aborted())}, aborted);
  parallel_.world.all_reduce(scalars, ReduceOp::Max).wait();
  const std::vector<double> values = read_values<double>(scalars);
  return {.loss = values[StepScalars::kLoss],
          .grad_norm = values[StepScalars::kGradNorm],
          .is_aborted = values.back() != 0};
}

void TrainingState::record_sample_losses(bool is_recording) {
  for (const Chunk& chunk : chunks_) chunk.stage->record_sample_losses(is_recording);
}

std::map<i64, double> TrainingState::sample_losses() const {
  std::map<i64, double> sums;
  if (parallel_.coordinates.tp != 0) return sums;
  for (const SampleLosses& losses : sample_losses_) {
    on_float(losses.sums.dtype(), [&]<class T>() {
      const std::vector<T> values = read_values<T>(losses.sums);
      for (std::size_t i = 0; i < values.size(); ++i) sums[losses.samples[i]] += to_double(values[i]);
    });
  }
  return sums;
}

i64 TrainingState::count_targets(std::span<const MicroBatch> batches) const {
  double count = 0;
  if (std::ranges::any_of(chunks_, [](const Chunk& chunk) { return chunk.model->stage().has_output; })) {
    for (const MicroBatch& batch : batches)
      count +=
          static_cast<double>(std::ranges::count_if(read_values<i32>(batch.targets), [](i32 t) { return t >= 0; }));
  }
  for (Communicator* group : {parallel_.dp_cp.get(), parallel_.pp.get()})
    count = reduce_scalar(count, ReduceOp::Sum, *group, device_);
  return static_cast<i64>(count);
}

StepOutcome TrainingState::train_step(std::span<const MicroBatch> batches, double lr, double weight_decay) {
  backward(batches);
  update({.lr = lr, .weight_decay = weight_decay});
  return outcome();
}

std::vector<float> TrainingState::next_logits(const MicroBatch& sample, i64 position) {
  const ModelConfig& config = chunks_.front().model->context().config;
  std::vector<float> values(static_cast<std::size_t>(config.padded_vocab_size()),
                            -std::numeric_limits<float>::infinity());
  const LogitsRequest request{
      .position = position,
      .row = Tensor::empty({config.padded_vocab_size()}, DType::F32, device_, MemoryClass::Workspace)};
  Tensor row = request.row;
  write_values(values, row);
  // Some schedules require a multiple of several microbatches: repeat the sample.
  int count = 1;
  while (!parallel_.layout.schedule_conflicts(count).empty()) ++count;
  const std::vector<MicroBatch> batches(static_cast<std::size_t>(count), sample);
  run(batches, /*is_training=*/false, 1, &request);
  // Each part of the vocabulary is on one rank, or bitwise identical on several.
  parallel_.world.all_reduce(row, ReduceOp::Max).wait();
  values = read_values<float>(row);
  values.resize(static_cast<std::size_t>(config.vocab_size));  // drops the padding
  return values;
}

void TrainingState::start_evaluation(std::span<const MicroBatch> batches) {
  MCPP_CHECK(evaluations_started_ - evaluations_taken_ < evaluation_readbacks_.size(),
             "too many evaluations in flight");
  run(batches, /*is_training=*/false);
  sum_over_ranks(totals_);
  Tensor values = Tensor::empty({kNumEvaluationValues}, DType::F64, device_, MemoryClass::Workspace);
  Tensor totals = values.flat(0, 2), stop_request = values.flat(kEvaluationStopRequest, StopRequest::kCount);
  ops::copy(totals_.flat(0, 2), totals);
  write_stop_request(kEvaluationStopRequest, values);
  parallel_.world.all_reduce(stop_request, ReduceOp::Max).wait();
  evaluation_readbacks_[evaluations_started_++ % evaluation_readbacks_.size()]->start(values);
}

EvaluationOutcome TrainingState::evaluation() {
  MCPP_CHECK(evaluations_taken_ < evaluations_started_, "no evaluation is in flight");
  const std::vector<double> values =
      evaluation_readbacks_[evaluations_taken_++ % evaluation_readbacks_.size()]->values();
  stop_request_ = stop_request_at(kEvaluationStopRequest, values);
  return {.loss = mean_of(values[0], values[1]), .tokens = static_cast<i64>(values[1])};
}

}  // namespace mcpp
