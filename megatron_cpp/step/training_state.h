// Model, gradients and optimizer of one run on one rank, and the step that trains them.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "megatron_cpp/step/model_stage.h"
#include "megatron_cpp/step/router_board.h"
#include "optimizer/loss_scale.h"
#include "optimizer/optimizer.h"
#include "parallel/partial_gradients.h"
#include "parallel/pp/schedule_kind.h"
#include "parallel/pp/stages.h"
#include "parallel/state.h"
#include "tensor/host/late_copy.h"

namespace mcpp {

/// The same on all ranks, which decide by it.
struct StepOutcome {
  double loss = 0;       ///< mean over the target tokens of the global batch; infinity when not finite on some rank
  i64 tokens = 0;        ///< of the global batch
  double grad_norm = 0;  ///< before clipping; infinity when not finite on some rank
  /// The worst that any rank found; NotFinite: of the loss or the gradient.
  StepVerdict verdict = StepVerdict::Fine;
  bool skipped = false;  ///< nothing was changed
  /// What a gradient that is not finite means for the loss scale. Handled = such steps end by themselves, as it comes
  /// down.
  Overflow overflow = Overflow::None;
  /// By a signal, on some rank: nothing was changed, and what is above says nothing.
  bool is_given_up = false;
  std::vector<LayerTally> experts = {};  ///< of the layers with experts
};

struct EvaluationOutcome {
  double loss = 0;  ///< mean over the target tokens of the global batch
  i64 tokens = 0;   ///< of the global batch
};

/// Of one update. The rule, lr and weight_decay must be the same on every rank.
struct StepOptions {
  double lr = 0;
  double weight_decay = 0;
  StepRule rule = {};  ///< of which clip_grad, rounds_norm and grad_scale are filled in here
};

/// How a training is laid out over its ranks.
struct TrainingLayout {
  ParallelState& parallel;
  ScheduleKind schedule = ScheduleKind::OneFOneB;
  std::vector<StageContents> stages = {};  ///< of the whole pipeline, in order; a multiple of its ranks
  DataParallelOptions data_parallel = {};
  bool saves_beside = false;           ///< checkpoints are written while the training goes on
  ActivationOffload activations = {};  ///< where they wait for backward

  int chunks_per_rank() const { return static_cast<int>(stages.size()) / parallel.topology.pp(); }
};

/// By MemoryClass.
using BytesAwayByClass = std::array<BytesAway, kMemoryClasses>;

class TrainingState {
 public:
  /// One stage of the pipeline on this rank.
  struct Chunk {
    std::unique_ptr<GPTModel> model;
    std::unique_ptr<ModelMemory> memory;
    std::unique_ptr<ModelStage> stage;
  };

  /// Allocates parameters and gradients, draws the initial weights, allocates the optimizer's state.
  TrainingState(const ModelContext& context, const OptimizerConfig& optimizer, TrainingLayout layout);

  std::span<const Chunk> chunks() const { return chunks_; }
  /// The parameters and gradients of all chunks.
  std::vector<ParamAndGradBuffer*> buffers() const;
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }

  /// With fp16, or where the configuration names one; the same on all ranks.
  LossScale& loss_scale() { return loss_scale_; }
  const LossScale& loss_scale() const { return loss_scale_; }

  /// Between the passes of steps and evaluations this is asked and told, and outlives them; the same on all ranks that
  /// it is there. What it gives up changes nothing, in this and every later update().
  void set_watch(StepWatch* watch) { step_.set_watch(watch); }

  /// Of weights and states, and the most so far of activations.
  BytesAwayByClass bytes_away() const;
  /// Null where activations stay on the device.
  const ActivationStore* activations() const { return activations_.get(); }

  // A step has three parts, none of which but the last waits for the device: backward(), update(), outcome(). The
  // backward() of the next step may come before the outcome() of this one, so that the device has something to do
  // meanwhile; its update() may not. An adapting loss scale is then taken for what it is unless this one overflows: if
  // must_repeat_backward() after the outcome(), the backward() was in vain. A part that is called when it is not its
  // turn is an Internal error.

  /// From the next backward() on: whether sums of gradients are taken in full, although power_sgd_rank is set. The same
  /// on all ranks.
  void sum_in_full(bool in_full);
  /// Runs forward and backward over this rank's microbatches of one global batch and reduces the gradients over all
  /// ranks. Earlier gradients are forgotten. `loss_grad_factor` multiplies the gradient of the loss: NaN injects a
  /// fault before the reduction.
  void backward(std::span<const MicroBatch> batches, double loss_grad_factor = 1);
  /// The update, or none when the loss or the gradient is not finite on any rank, or by options.rule.
  void update(const StepOptions& options);
  /// What became of the last update(), which is waited for; nothing that was queued after it is.
  StepOutcome outcome();
  /// Whether the last backward() has another loss scale than it should; the same on all ranks.
  bool must_repeat_backward() const { return grad_scale_ != loss_scale_.factor(tokens_); }
  /// All three at once.
  StepOutcome train_step(std::span<const MicroBatch> batches, double lr, double weight_decay);
  /// Between backward() and update(): this rank's sum of losses and number of targets, fp64 [2].
  Tensor& loss_totals() { return totals_; }

  /// The loss alone; dropout is off. Waits for nothing. At most two are under way, so that a device has the next to do
  /// while the host asks what became of the first.
  void start_evaluation(std::span<const MicroBatch> batches);
  /// Of the first one started that was not asked for yet, which is waited for.
  EvaluationOutcome evaluation();
  /// The logits [vocabulary] of what follows the token at `position` of the one sample, which is the same on all
  /// data-parallel ranks, as are the logits on all ranks; dropout is off. A signal does not end it.
  std::vector<float> next_logits(const MicroBatch& sample, i64 position);
  /// Of all ranks, which decide by them: those that came with the last outcome() or evaluation(). With a signal the
  /// loss of an evaluation may say nothing.
  const Notices& notices() const { return notices_; }

  /// After the weights that visit_weights() gives were changed: all ranks see the new ones.
  void publish_weights();
  DataParallelGroups gradient_groups(GridKind grid) const { return layout_.parallel.gradient_groups(grid); }
  /// Whether this rank is the one to save `param`, of the ranks that hold a copy of it in their slice of the model.
  bool saves(const Param& param) const { return layout_.parallel.stands_for_holders(param.placement); }
  /// The same for what all ranks of a stage hold alike.
  bool saves_for_stage() const { return layout_.parallel.me.tp == 0 && layout_.parallel.data_context->rank() == 0; }
  /// For other stages of the pipeline, since the start: for messages of its schedules, and at their end.
  double pipeline_waiting_seconds() const { return pipeline_waiting_; }
  /// For all ranks, since the start, as they agree on the outcome of a step.
  double agreement_seconds() const { return agreement_; }

 private:
  std::vector<Chunk> make_chunks(ModelContext context);
  std::vector<GPTModel*> models() const;
  Schedule make_lowered(std::size_t microbatches, bool training, int in_turn) const;
  struct LogitsRequest {
    i64 position;
    Tensor row;
  };
  /// Leaves this rank's part in totals_; with a request the logits, and no losses.
  void run(std::span<const MicroBatch> batches, bool training, double grad_scale = 1,
           const LogitsRequest* request = nullptr);
  i64 tokens_of_global_batch(std::span<const MicroBatch> batches) const;
  void sum_totals_over_ranks();
  /// Puts what this rank has to tell the others into `numbers` from `place` on.
  void write_notices(i64 place, Tensor& numbers) const;

  TrainingLayout layout_;
  Device& device_;
  Profiler* profiler_;
  std::unique_ptr<ActivationStore> activations_;  // null where they stay on the device
  std::vector<Chunk> chunks_;
  Optimizer optimizer_;
  LossScale loss_scale_;
  i64 tokens_ = 1;                                     // of the last backward()'s global batch
  double grad_scale_ = 1;                              // of the last backward()
  bool has_gradients_ = false, owes_outcome_ = false;  // since backward(); since update()
  PartialGradients partial_gradients_;
  RouterBoard routers_;
  Tensor totals_;   // fp64 [2]: the loss summed over targets, and their number
  Tensor numbers_;  // fp64: of the last update, StepNumbers, then Notices, then whether a rank gave it up
  std::unique_ptr<LateCopy> late_numbers_;
  std::array<std::unique_ptr<LateCopy>, 2> late_evaluations_;  // in turn
  std::size_t evaluations_started_ = 0, evaluations_taken_ = 0;
  StepUnderWay step_;
  Notices notices_;
  std::map<std::pair<std::size_t, bool>, Schedule> schedules_;  // lowered, by microbatches and whether training
  double pipeline_waiting_ = 0, agreement_ = 0;
  std::unique_ptr<DeviceWaits> pipeline_waits_, agreement_waits_;  // null where the device waits as the host does
};

}  // namespace mcpp
