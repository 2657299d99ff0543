// Training state of one rank (model, gradients, optimizer) and the training step.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "megatron_cpp/step/logit_stats.h"
#include "megatron_cpp/step/model_stage.h"
#include "megatron_cpp/step/router_stats.h"
#include "optimizer/loss_scale.h"
#include "optimizer/optimizer.h"
#include "parallel/partial_gradients.h"
#include "parallel/state.h"
#include "tensor/host/async_copy.h"

namespace mcpp {

/// Result of a step, identical on all ranks.
struct StepOutcome {
  double loss = 0;  ///< mean over the target tokens of the global batch; infinity if non-finite on any rank
  i64 tokens = 0;   ///< target tokens in the global batch
  std::vector<double> mtp_losses = {};  ///< mean loss of each layer of multi-token prediction
  double output_z_loss = 0;             ///< mean z-loss of the output, which `loss` does not include
  double grad_norm = 0;                 ///< norm before clipping; infinity if non-finite on any rank
  /// Worst status over all ranks. NotFinite refers to the loss or the gradient.
  StepStatus status = StepStatus::Fine;
  bool is_skipped = false;  ///< no update was applied
  /// Effect of a non-finite gradient on the loss scale.
  Overflow overflow = Overflow::None;
  /// True if a signal on any rank aborted the step: nothing was changed and the other fields are meaningless.
  bool is_aborted = false;
  std::vector<LayerRoutingStats> experts = {};  ///< statistics of the expert layers
  std::vector<LayerLogits> logits = {};         ///< attention logits by layer, if recorded
};

struct EvaluationOutcome {
  double loss = 0;  ///< mean over the target tokens of the global batch
  i64 tokens = 0;   ///< target tokens in the global batch
};

/// Options for one update. `rule`, `lr` and `weight_decay` must be identical on every rank.
struct StepOptions {
  double lr = 0;
  double weight_decay = 0;
  StepRule rule = {};  ///< clip_grad, round_norm_to_fp32 and grad_scale are filled in by update()
};

/// Storage of the data that a training run offloads and that its saves copy. The layout specifies the tiers.
struct TrainingStorage {
  ParamOffload params = {};
  ActivationOffload activations = {};
  bool saves_asynchronously = false;  ///< checkpoints are saved asynchronously
};

/// Offloaded bytes by MemoryClass.
using OffloadedBytesByClass = std::array<OffloadedBytes, kMemoryClasses>;

class TrainingState {
 public:
  /// Model chunk of a pipeline stage on this rank.
  struct Chunk {
    std::unique_ptr<GPTModel> model;
    std::unique_ptr<ChunkParamBuffers> memory;
    std::unique_ptr<ModelStage> stage;
  };

  /// Allocates parameters and gradients, initializes the weights, and allocates the optimizer state.
  TrainingState(const ModelContext& context, const OptimizerConfig& optimizer, ParallelState& parallel,
                const TrainingStorage& storage);

  std::span<const Chunk> chunks() const { return chunks_; }
  /// Returns the parameter and gradient buffers of all chunks.
  std::vector<ParamAndGradBuffer*> buffers() const;
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }

  /// Loss scale for fp16 or as configured; identical on all ranks.
  LossScale& loss_scale() { return loss_scale_; }
  const LossScale& loss_scale() const { return loss_scale_; }

  /// Returns the histories of layers with the recipe `delayed`; null if no layer has it.
  const AmaxHistories* amax_histories() const { return amax_histories_.get(); }

  /// Sets the observer of steps and evaluations, on all ranks or none. Aborted steps are not applied by update().
  void set_observer(StepObserver* watch) { step_.set_observer(watch); }

  /// Returns the offloaded bytes: the current value for weights and states, and the peak for activations.
  OffloadedBytesByClass offloaded_bytes() const;
  /// Returns the activation store; null if activations stay on the device.
  const ActivationStore* activations() const { return activations_.get(); }

  // A step has three parts: backward(), update() and outcome(); only outcome() waits for the device. The backward() of
  // the next step may precede the outcome() of this one to keep the device busy; its update() may not. A backward()
  // that precedes outcome() assumes that a dynamic loss scale will not change. It must be repeated if
  // needs_backward_rerun() returns true after outcome(). Calls out of order throw an Internal error.

  /// Sets whether gradients are reduced exactly from the next backward() on, even if power_sgd_rank is set. Must be
  /// identical on all ranks.
  void set_exact_reduction(bool is_exact);
  /// Sets whether steps record the largest attention logits, from the next backward() on. QK-clip always records them.
  /// Must be identical on all ranks.
  void record_attention_logits(bool is_recording) { records_logits_ = is_recording; }
  /// Sets whether steps record the losses of their samples, from the next backward() on.
  void record_sample_losses(bool is_recording);
  /// Makes updates record the sums of squares of gradients by layer (Optimizer::layer_squares()). Call it on all ranks,
  /// before the first update.
  void record_layer_squares() { optimizer_.record_layer_squares(buffers()); }
  /// Returns the recorded losses of the last update() that this rank computed, by sample: sums over the targets. Ranks
  /// with the same targets as another return none. Waits for the device.
  std::map<i64, double> sample_losses() const;
  /// Returns the factor of the gradients of the last update() relative to the gradients of the mean loss.
  double updated_grad_scale() const { return updated_grad_scale_; }
  /// Runs forward and backward over this rank's microbatches of one global batch and reduces the gradients over all
  /// ranks. Replaces earlier gradients. `loss_grad_factor` multiplies the gradient of the loss; NaN injects a fault
  /// before the reduction.
  void backward(std::span<const MicroBatch> batches, double loss_grad_factor = 1);
  /// Queues the update. Skips the update if the loss or gradient of any rank is not finite, or if options.rule requires
  /// it.
  void update(const StepOptions& options);
  /// Waits for the last update() and returns its result. Does not wait for work queued after it.
  StepOutcome outcome();
  /// Returns true if the last backward() used an outdated loss scale. Identical on all ranks.
  bool needs_backward_rerun() const { return grad_scale_ != loss_scale_.factor(tokens_); }
  /// Returns the number of targets in the global batch, as StepOutcome::tokens of a step on it. Collective.
  i64 count_targets(std::span<const MicroBatch> batches) const;
  /// Loss and gradient norm of the last backward(), as StepOutcome states them.
  struct Measurement {
    double loss = 0, grad_norm = 0;
    bool is_aborted = false;
  };
  /// Returns the results of the last backward(), whose gradients stay available for update(). Collective.
  Measurement measure();
  /// Calls backward(), update() and outcome().
  StepOutcome train_step(std::span<const MicroBatch> batches, double lr, double weight_decay);
  /// Returns the sum of losses and the number of targets of this rank, fp64 [2], followed by two such values for each
  /// layer of multi-token prediction, and by the sum of z-losses. Valid between backward() and update().
  Tensor& loss_totals() { return totals_; }

  /// Queues the forward passes of an evaluation, without dropout. Does not wait. At most two evaluations may be in
  /// flight, which keeps the device busy while the host reads the result of the first.
  void start_evaluation(std::span<const MicroBatch> batches);
  /// Waits for the oldest evaluation in flight and returns its result.
  EvaluationOutcome evaluation();
  /// Returns the logits [vocabulary] that follow the token at `position` of a single sample, without dropout. The
  /// sample must be the same on all data-parallel ranks; the result is identical on all ranks. Not interrupted by
  /// signals.
  std::vector<float> next_logits(const MicroBatch& sample, i64 position);
  /// Returns the stop request of all ranks as of the last outcome() or evaluation(). If the request has a signal, the
  /// loss of that evaluation is meaningless.
  const StopRequest& stop_request() const { return stop_request_; }

  /// Exchanges the weights with their moving average, which must be kept, on all ranks. A second call restores both
  /// bitwise. No step may run in between.
  void swap_ema();
  /// Distributes weights that were modified through visit_weights() to all ranks, and derives the scales of the recipe
  /// `delayed` from its histories, which a load modifies.
  void publish_weights();
  DataParallelGroups gradient_groups(GridKind grid) const { return parallel_.gradient_groups(grid); }
  /// Returns true if this rank saves `param` on behalf of all ranks that hold a copy of it in their slice of the model.
  bool should_save(const Param& param) const { return parallel_.is_primary_replica(param.placement); }
  /// Returns true if this rank saves the data that is replicated on all ranks of a stage.
  bool should_save_for_stage() const { return parallel_.coordinates.tp == 0 && parallel_.dp_cp->rank() == 0; }
  /// Returns the seconds spent waiting for other pipeline stages since start-up: for messages and at the end of
  /// schedules.
  double pipeline_waiting_seconds() const { return pipeline_waiting_; }
  /// Returns the seconds spent waiting for all ranks to agree on the outcome of steps since start-up.
  double agreement_seconds() const { return agreement_; }

 private:
  std::vector<Chunk> make_chunks(ModelContext context, const ParamOffload& offload);
  std::vector<GPTModel*> models() const;
  Schedule build_schedule(std::size_t microbatches, bool is_training, int serialized_microbatches) const;
  struct LogitsRequest {
    i64 position;
    Tensor row;
  };
  /// Runs a schedule; leaves this rank's contribution in totals_. With a request, computes logits instead of losses.
  void run(std::span<const MicroBatch> batches, bool is_training, double grad_scale = 1,
           const LogitsRequest* request = nullptr);
  i64 tokens_of_global_batch(std::span<const MicroBatch> batches) const;
  void sum_over_ranks(Tensor& totals);
  RowScales clip_logits();
  /// Updates the state that layers derive from an applied step.
  void end_step_of_layers();
  /// Writes this rank's stop request into `values` at `offset`.
  void write_stop_request(i64 offset, Tensor& values) const;

  ParallelState& parallel_;
  Device& device_;
  Profiler* profiler_;
  std::unique_ptr<ActivationStore> activations_;  // null if activations stay on the device
  PassInterleaver interleaver_;
  std::unique_ptr<AmaxHistories> amax_histories_;  // null if no layer has the recipe `delayed`
  std::vector<Chunk> chunks_;
  Optimizer optimizer_;
  LossScale loss_scale_;
  i64 tokens_ = 1;                                           // tokens in the global batch of the last backward()
  double grad_scale_ = 1;                                    // factor of the last backward()
  double updated_grad_scale_ = 1;                            // factor of the last update()
  bool has_gradients_ = false, is_outcome_pending_ = false;  // set by backward() and by update(), respectively
  PartialGradients partial_gradients_;
  RouterStats routers_;
  LogitStats logits_;
  bool records_logits_ = false;
  std::vector<LayerLogits> layer_logits_;    // of the last update()
  std::vector<SampleLosses> sample_losses_;  // of the last update()
  Tensor totals_;                            // fp64, see loss_totals()
  Tensor step_scalars_;  // fp64, of the last update: StepScalars, StopRequest, and whether any rank aborted
  std::unique_ptr<AsyncReadback> step_readback_;
  std::array<std::unique_ptr<AsyncReadback>, 2> evaluation_readbacks_;  // used alternately by the evaluations in flight
  std::size_t evaluations_started_ = 0, evaluations_taken_ = 0;
  InterruptibleStep step_;
  StopRequest stop_request_;
  std::map<std::pair<std::size_t, bool>, Schedule> schedules_;  // lowered; keys are (microbatches, is_training)
  double pipeline_waiting_ = 0, agreement_ = 0;
  std::unique_ptr<DeviceWaitTimer> pipeline_wait_timer_,
      agreement_wait_timer_;  // null if the device is synchronous with the host
};

}  // namespace mcpp
