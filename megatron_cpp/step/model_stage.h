// Model chunk as driven by the pipeline engine: consumes microbatches and produces losses on the last stage.
#pragma once
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "megatron_cpp/step/interruptible_step.h"
#include "megatron_cpp/step/micro_batch.h"
#include "megatron_cpp/step/recorded_passes.h"
#include "model/gpt_model.h"
#include "parallel/pp/engine.h"
#include "tensor/processor.h"

namespace mcpp {

/// Losses of the samples of a microbatch.
struct SampleLosses {
  std::vector<i64> samples;  ///< [b] global sample indices
  Tensor sums;               ///< [b] sums of the losses of the targets on this rank
};

class ModelStage final : public PipelineStage {
 public:
  /// `chunk` is the index of the chunk on its rank, used in profiles. Passes yield to each other through `interleaver`;
  /// null if they never run together.
  ModelStage(GPTModel& model, int chunk, PassInterleaver* interleaver = nullptr)
      : model_(model), chunk_(chunk), interleaver_(interleaver) {}

  /// Prepares a run of a schedule. `batches` and `step` must outlive it. `grad_scale` multiplies the gradients. The
  /// last stage adds the losses and target counts of each microbatch to `totals`, fp64 [2 + 2 mtp_num_layers + 1]: two
  /// values of the model, two values of each layer of multi-token prediction, and the sum of z-losses. `step` is polled
  /// before each pass; once it is aborted, nothing more is computed and zeros are sent to the other stages.
  void begin(std::span<const MicroBatch> batches, bool is_training, double grad_scale, const Tensor& totals,
             InterruptibleStep& step);

  /// Makes training steps after the first `warmup_steps` run recorded passes: forward() then computes forward and
  /// backward. The stage must be the full model, without experts, offloaded activations, or reduction within a pass.
  void record_passes(i64 warmup_steps) { recorded_passes_ = std::make_unique<RecordedPasses>(model_, warmup_steps); }
  /// Returns the recorded passes; null without record_passes().
  const RecordedPasses* recorded_passes() const { return recorded_passes_.get(); }
  /// Sets whether training passes record attention logits, from the next begin() on. Passes with and without logits
  /// have separate recordings.
  void set_records_logits(bool is_recording) { records_logits_ = is_recording; }
  /// Sets whether the last stage records the losses of each sample in training, from the next begin() on.
  void record_sample_losses(bool is_recording) { records_sample_losses_ = is_recording; }
  /// Returns the recorded losses of the last run, by microbatch. Aborted microbatches are missing.
  std::vector<SampleLosses> take_sample_losses() { return std::exchange(sample_losses_, {}); }

  /// Requests logits instead of losses for an inference run; call it after begin(). The last stage writes the logits
  /// that follow the token at `position` in the first sample of the first microbatch to this rank's part of `row`, fp32
  /// [padded vocabulary], unless context parallelism assigns the position to a different rank.
  void request_logits(i64 position, const Tensor& row);

  void begin_pass(int microbatch) override;
  Tensor forward(int microbatch, const Tensor& x) override;
  Tensor backward(int microbatch, const Tensor& dy, bool is_last) override;
  Tensor backward_input(int microbatch, const Tensor& dy) override;
  void backward_weight(int microbatch, bool is_last) override;
  void prefetch_backward(int microbatch) override {
    contexts_.at(static_cast<std::size_t>(microbatch)).saved_tensors.prefetch();
  }
  void reduce_gradients() override;
  Tensor empty_input() override { return empty_hidden(model_.stage().receives_predictions()); }
  Tensor empty_output_gradient() override { return empty_hidden(model_.stage().sends_predictions()); }

 private:
  /// Returns the profile range of a pass. `name` is the name of Megatron-LM's timer for it.
  ProfileRange range(const char* name, int microbatch) const;
  MicrobatchContext make_context(const MicroBatch& batch) const;
  Tensor compute_forward(int microbatch, const Tensor& x);
  void run_recorded(int microbatch);
  /// Queues forward and backward of a microbatch. Returns the losses per token.
  Tensor forward_and_backward(int microbatch, const RecordedInputs& inputs);
  void add_to_totals(const GPTModel::Losses& losses);
  MicrobatchContext& context_of(int microbatch) { return contexts_.at(static_cast<std::size_t>(microbatch)); }
  Tensor gradient_of_input(MicrobatchContext& next, const Tensor& dy);
  /// Allocates a message between stages, see StageContents::sends_predictions().
  Tensor empty_hidden(bool has_predictions) const;
  void read_logits(const Tensor& logits, const MicrobatchContext& context);
  /// Records the losses of the samples of a microbatch. `per_token` is [s * b].
  void add_sample_losses(const std::vector<i64>& samples, const Tensor& per_token);

  GPTModel& model_;
  int chunk_;
  PassInterleaver* interleaver_;
  InterruptibleStep* step_ = nullptr;
  std::span<const MicroBatch> batches_;
  std::unique_ptr<RecordedPasses> recorded_passes_;  // null if passes are not recorded
  bool runs_recorded_ = false;                       // this run uses recorded_passes_
  bool is_training_ = false, records_sample_losses_ = false, records_logits_ = false;
  std::vector<SampleLosses> sample_losses_;
  double grad_scale_ = 1;
  std::vector<MicrobatchContext> contexts_;
  Tensor totals_;
  Tensor logits_row_;  // undefined unless logits are requested
  i64 logits_position_ = 0;
};

}  // namespace mcpp
