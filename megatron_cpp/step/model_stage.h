// A chunk of the model as the pipeline engine drives it: microbatches go in, losses come out at the last stage.
#pragma once
#include <span>
#include <vector>

#include "megatron_cpp/step/step_watch.h"
#include "model/gpt_model.h"
#include "parallel/pp/engine.h"
#include "tensor/processor.h"

namespace mcpp {

/// One forward and backward pass's worth of samples, sequence first: s are the positions that this rank has.
struct MicroBatch {
  Tensor tokens;             ///< int32 [s, b]; on the first pipeline stage
  Tensor targets;            ///< int32 [s, b], -1 = not counted; on the last
  std::vector<i64> samples;  ///< [b] global sample numbers
  /// int32 [s, b], as Pass's; on every stage, where documents are told apart. attention_starts is of the rows that
  /// attention has, after an exchange of heads.
  Tensor attention_starts = {}, position_starts = {};
  std::shared_ptr<const SampleCut> cut = nullptr;  ///< over context-parallel ranks; null without
};
/// What a context-parallel rank has of a microbatch of whole samples, cut so that attention costs all the same. On
/// stages that read nothing there are only sample numbers.
MicroBatch cut(const MicroBatch& whole, const ModelConfig& config, const ContextParallel& cp);

class ModelStage final : public PipelineStage {
 public:
  /// `chunk`: which one of its rank this is, as profiles name it.
  ModelStage(GPTModel& model, int chunk) : model_(model), chunk_(chunk) {}

  /// Before each run of a schedule. `batches` must stay until it has ended. `grad_scale` multiplies the gradients. The
  /// last stage adds the losses and targets of each to `totals`, fp64 [2], in order. `step`, which outlives the run, is
  /// asked before each pass; once it is given up nothing more is computed, and zeros go to the other stages.
  void begin(std::span<const MicroBatch> batches, bool training, double grad_scale, const Tensor& totals,
             StepUnderWay& step);

  /// After begin(), for a run without training: the last stage computes logits in the place of losses. Those of the
  /// first microbatch's first sample after the token at `position` go to this rank's part of `row`, fp32 [padded
  /// vocabulary]; none where context parallelism gives the position to another rank.
  void ask_logits(i64 position, const Tensor& row);

  Tensor forward(int microbatch, const Tensor& x) override;
  Tensor backward(int microbatch, const Tensor& dy, bool is_last) override;
  Tensor backward_input(int microbatch, const Tensor& dy) override;
  void backward_weight(int microbatch, bool is_last) override;
  void expect_backward(int microbatch) override { passes_.at(static_cast<std::size_t>(microbatch)).stash.expect(); }
  void reduce_gradients() override { model_.release_gradients(); }
  Tensor empty_activation() override;

 private:
  /// Of a pass; Megatron-LM's timers call it `name`.
  ProfileRange range(const char* name, int microbatch) const;
  /// The one that comes next.
  Pass& pass(int microbatch);
  Tensor gradient_of_input(Pass& next, const Tensor& dy);
  Tensor zero_activation();
  void read_logits(const Tensor& logits, const Pass& pass);

  GPTModel& model_;
  int chunk_;
  StepUnderWay* step_ = nullptr;
  std::span<const MicroBatch> batches_;
  double grad_scale_ = 1;
  std::vector<Pass> passes_;
  Tensor totals_;
  Tensor logits_row_;  // undefined unless they are asked for
  i64 logits_position_ = 0;
};

}  // namespace mcpp
