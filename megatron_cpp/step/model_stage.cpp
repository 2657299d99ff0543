#include "megatron_cpp/step/model_stage.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "model/config/block_spec.h"
#include "parallel/cp/sequence_partition.h"
#include "tensor/ops/ops.h"
#include "tensor/transfer.h"

namespace mcpp {

namespace {

AttentionWork attention_work(const MicroBatch& batch, const ModelConfig& config) {
  AttentionWork work{.seq_length = config.seq_length, .batch = static_cast<i64>(batch.samples.size())};
  if (batch.attention_starts.defined()) work.starts = read_values<i32>(batch.attention_starts);
  for (const BlockSpec& block : block_specs(config))
    if (const auto attention = block.core_attention()) work.layers.push_back({attention->window, attention->chunk});
  return work;
}

Tensor zeroed(Tensor x) {
  ops::fill_zero(x);
  return x;
}

}  // namespace

MicroBatch shard_microbatch(const MicroBatch& batch, const ModelConfig& config, const ContextParallel& cp) {
  if (cp.size() == 1) return batch;
  const auto partition =
      std::make_shared<const SamplePartition>(balance_sequence_partition(cp.partition, attention_work(batch, config)));
  const i64 rows = config.seq_length / cp.size();
  const auto rows_of = [](const Tensor& t, const PositionRanges& at, i64 count) {
    return t.defined() ? select_rows(t, at, count) : t;
  };
  const PositionRanges at = partition->rank_positions(cp.rank);
  std::vector<FutureTokens> future;
  for (const FutureTokens& ahead : batch.future)
    future.push_back({.tokens = rows_of(ahead.tokens, at, rows), .targets = rows_of(ahead.targets, at, rows)});
  return {.tokens = rows_of(batch.tokens, at, rows),
          .targets = rows_of(batch.targets, at, rows),
          .samples = batch.samples,
          .future = std::move(future),
          .attention_starts =
              rows_of(batch.attention_starts, partition->member_positions(cp.member()), rows * cp.partition.heads),
          .position_starts = rows_of(batch.position_starts, at, rows),
          .sequence_starts = batch.attention_starts,
          .partition = partition};
}

void ModelStage::begin(std::span<const MicroBatch> batches, bool is_training, double grad_scale, const Tensor& totals,
                       InterruptibleStep& step) {
  batches_ = batches;
  is_training_ = is_training;
  grad_scale_ = grad_scale;
  totals_ = totals;
  step_ = &step;
  logits_row_ = {};
  sample_losses_.clear();
  contexts_.clear();
  for (const MicroBatch& batch : batches) contexts_.push_back(make_context(batch));
  runs_recorded_ = is_training && recorded_passes_ && recorded_passes_->begin_step(records_logits_);
}

MicrobatchContext ModelStage::make_context(const MicroBatch& batch) const {
  MicrobatchContext context;
  context.training = context.saves_for_backward = is_training_;
  context.is_last = false;
  context.grad_scale = grad_scale_;
  context.samples = batch.samples;
  context.partition = batch.partition;
  if (context.partition) context.positions = context.partition->rank_positions(model_.context().cp.rank);
  context.attention_starts = batch.attention_starts;
  context.position_starts = batch.position_starts;
  context.sequence_starts = batch.sequence_starts;
  if (interleaver_ && is_training_) context.yield = [this] { interleaver_->yield(); };
  return context;
}

void ModelStage::begin_pass(int microbatch) {
  if (!step_->should_continue()) context_of(microbatch).abort();
}

ProfileRange ModelStage::range(const char* name, int microbatch) const {
  const ModelContext& context = model_.context();
  return {context.device, context.profiler, name, Detail::Microbatch, {.microbatch = microbatch, .chunk = chunk_}};
}

Tensor ModelStage::forward(int microbatch, const Tensor& x) {
  if (runs_recorded_) {
    run_recorded(microbatch);
    return {};
  }
  const ProfileRange profiled = range("forward-compute", microbatch);
  if (is_training_ || !recorded_passes_) return compute_forward(microbatch, x);
  recorded_passes_->use_arena([&] { compute_forward(microbatch, x); });
  return {};
}

Tensor ModelStage::compute_forward(int microbatch, const Tensor& x) {
  const MicroBatch& batch = batches_[static_cast<std::size_t>(microbatch)];
  const Tensor& input = model_.stage().has_embedding ? batch.tokens : x;
  MicrobatchContext& next = context_of(microbatch);
  if (!model_.stage().has_output) {
    const Tensor y = model_.forward(input, next, batch.future);
    return next.is_aborted() ? zeroed(empty_output_gradient()) : y;
  }
  if (logits_row_.defined()) {
    const Tensor logits = model_.logits(input, next);
    if (microbatch == 0) read_logits(logits, next);
    return {};
  }
  const GPTModel::Losses losses =
      model_.loss(input, {.next = batch.targets, .future = batch.future}, grad_scale_, next);
  if (next.is_aborted()) return {};
  add_to_totals(losses);
  if (is_training_ && records_sample_losses_) add_sample_losses(batch.samples, losses.next.per_token);
  return {};
}

void ModelStage::add_to_totals(const GPTModel::Losses& losses) {
  auto add = [this, offset = i64{0}](const TokenLosses& part) mutable {
    Tensor sum = totals_.flat(std::exchange(offset, offset + 2), 2);
    ops::add_to(part.totals, sum);
  };
  add(losses.next);
  std::ranges::for_each(losses.future, std::ref(add));
  if (Tensor sum = totals_.flat(totals_.numel() - 1, 1); losses.next.z_loss.defined())
    ops::add_to(losses.next.z_loss, sum);
}

void ModelStage::run_recorded(int microbatch) {
  if (context_of(microbatch).is_aborted()) return;
  const MicroBatch& batch = batches_[static_cast<std::size_t>(microbatch)];
  const Tensor per_token = recorded_passes_->run(batch, grad_scale_, [this, microbatch](const RecordedInputs& inputs) {
    return forward_and_backward(microbatch, inputs);
  });
  if (records_sample_losses_) add_sample_losses(batch.samples, per_token);
}

Tensor ModelStage::forward_and_backward(int microbatch, const RecordedInputs& inputs) {
  MicrobatchContext context = make_context(inputs.batch);
  context.sample_indices = inputs.sample_indices;
  context.loss_factor = inputs.loss_factor;
  context.grad_scale = 1;  // loss_factor scales the gradients of each launch
  Tensor per_token;
  {
    const ProfileRange profiled = range("forward-compute", microbatch);
    const GPTModel::Losses losses =
        model_.loss(inputs.batch.tokens, {.next = inputs.batch.targets, .future = inputs.batch.future},
                    /*grad_scale=*/1, context);
    add_to_totals(losses);
    per_token = losses.next.per_token;
  }
  const ProfileRange profiled = range("backward-compute", microbatch);
  model_.backward({}, context);
  return per_token;
}

void ModelStage::add_sample_losses(const std::vector<i64>& samples, const Tensor& per_token) {
  const auto count = static_cast<i64>(samples.size());
  Tensor sums = Tensor::like(per_token, {count});
  ops::column_sum(per_token.view({-1, count}), sums, 0);
  sample_losses_.push_back({.samples = samples, .sums = sums});
}

void ModelStage::request_logits(i64 position, const Tensor& row) {
  logits_position_ = position;
  logits_row_ = row;
}

void ModelStage::read_logits(const Tensor& logits, const MicrobatchContext& context) {
  const i64 row = context.positions.rows_before(logits_position_), rows = model_.context().local_seq_length();
  if (row >= rows || context.positions.at(row) != logits_position_) return;
  const i64 samples = static_cast<i64>(batches_.front().samples.size()), part = logits.dim(1);
  Tensor local = logits_row_.flat(model_.context().tp.rank() * part, part);
  ops::copy(logits.slice(row * samples, row * samples + 1).view({-1}), local);
}

Tensor ModelStage::backward(int microbatch, const Tensor& dy, bool is_last) {
  if (runs_recorded_) return {};  // forward() has computed it, and reduce_gradients() follows
  const ProfileRange profiled = range("backward-compute", microbatch);
  MicrobatchContext& next = context_of(microbatch);
  next.is_last = is_last;
  return gradient_of_input(next, dy);
}

Tensor ModelStage::backward_input(int microbatch, const Tensor& dy) {
  if (runs_recorded_) return {};
  const ProfileRange profiled = range("backward-compute-input", microbatch);
  MicrobatchContext& next = context_of(microbatch);
  next.delay_wgrad_compute = true;
  return gradient_of_input(next, dy);
}

Tensor ModelStage::gradient_of_input(MicrobatchContext& next, const Tensor& dy) {
  const Tensor dx = model_.backward(dy, next);
  return next.is_aborted() && !model_.stage().has_embedding ? zeroed(empty_input()) : dx;
}

void ModelStage::backward_weight(int microbatch, bool) {
  if (runs_recorded_) return;
  const ProfileRange profiled = range("backward-compute-weight", microbatch);
  context_of(microbatch).run_delayed_wgrads();
}

void ModelStage::reduce_gradients() {
  model_.release_gradients();
  if (recorded_passes_ && !contexts_.back().is_aborted()) recorded_passes_->end_step();
}

Tensor ModelStage::empty_hidden(bool has_predictions) const {
  const ModelContext& context = model_.context();
  const i64 seq = context.local_seq_length() / (context.sequence_parallel ? context.tp.size() : 1),
            states = has_predictions && is_training_ ? 1 + context.config.mtp_num_layers : 1;
  return Tensor::empty({states * seq, static_cast<i64>(batches_.front().samples.size()), context.config.hidden_size},
                       context.dtype, context.device);
}

}  // namespace mcpp
