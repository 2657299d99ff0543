// The update of the weights: global gradient norm, clipping, AdamW or SGD over the flat vectors, with fp32 moments and,
// for bf16 and fp16 models, fp32 master weights.
#pragma once
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/config.h"
#include "optimizer/norm_scope.h"
#include "parallel/dp/buffer.h"
#include "tensor/ops/ops.h"

namespace mcpp {

struct StepResult {
  double grad_norm = 0;     ///< global L2 norm of gradient * grad_scale, before clipping
  bool skipped = false;     ///< the norm was not finite: nothing was changed
  double lr = 0;            ///< as given
  double weight_decay = 0;  ///< as given
};

enum class StateKind : u8 { Master, ExpAvg, ExpAvgSq, Momentum };
/// "master", "exp_avg", "exp_avg_sq", "momentum_buffer".
std::string_view name_of(StateKind kind);

class Optimizer {
 public:
  /// Allocates the state of what the buffers' shard() gives this rank; the buffers must outlive the optimizer. Master
  /// weights start as the model's weights.
  Optimizer(std::span<ParamAndGradBuffer* const> buffers, const OptimizerConfig& config, NormScope scope = {});

  /// One update, after every buffer's finish(); the caller then calls publish() on each. `grad_scale` turns the summed
  /// gradient into that of the loss (1 / number of target tokens). A gradient whose norm is not finite leaves weights,
  /// state and step counter as they are, on every rank. Clipping as Megatron-LM does: by clip_grad / (norm + 1e-6)
  /// where that is below 1. Parameters that do not decay (Param::decays()) get no weight decay.
  StepResult step(double lr, double weight_decay, double grad_scale = 1);

  /// The parts of step(), for a caller that does not wait: it queues judge(), agrees on the factor with the ranks that
  /// hold other gradients or the same weights, queues update(), and calls count_step() before the next update() when
  /// this one was taken.
  ///
  /// What ops::judge_step() says of this gradient by `rule`, whose clip_grad and rounds_norm are filled in here, and of
  /// the loss in `totals`.
  Tensor judge(const Tensor& totals, StepRule rule) const;
  /// `factor`: fp64 [1]; nothing is changed when it is not finite.
  void update(double lr, double weight_decay, const Tensor& factor);
  void count_step() { ++steps_; }

  /// For bf16 and fp16 models; without effect where the model's weights are the master weights themselves.
  void copy_model_to_master();  ///< after other weights were loaded into the model alone
  void copy_master_to_model();  ///< after master weights were loaded; the caller then publishes

  /// Calls f(kind, param, first, values) for each state of each parameter: `values` is a flat view of the param's
  /// elements [first, first + values.numel()) that this rank updates, counted in its box. Master comes up only where it
  /// is a copy (bf16 and fp16 models). The order is fixed; parameters of which this rank updates nothing are left out.
  using StateVisitor = std::function<void(StateKind, Param&, i64 first, Tensor values)>;
  void visit_state(const StateVisitor& f) const;

  /// Updates done; skipped steps do not count. Bias correction depends on it, so it belongs in checkpoints.
  i64 steps() const { return steps_; }
  void set_steps(i64 steps) { steps_ = steps; }

 private:
  /// One contiguous range of a buffer's flat vectors, with its state. All tensors have one axis of the same length.
  struct Segment {
    const ParamAndGradBuffer* buffer;
    i64 begin;  // in the flat vectors
    Tensor model, grads;
    Tensor master;               // model itself, unless the model is bf16 or fp16
    std::vector<Tensor> states;  // AdamW: first and second moment; SGD: momentum
    std::vector<DecayRun> runs;
    std::vector<std::pair<i64, i64>> counted;  // for the norm, relative to begin

    bool has_master_copy() const { return master.dtype() != model.dtype(); }
  };

  Segment make_segment(const ParamAndGradBuffer& buffer, const ShardSegment& shard) const;
  void update(Segment& segment, const DecayRun& run, double lr, double weight_decay, const Tensor& factor);

  OptimizerConfig config_;
  NormScope scope_;
  Device& device_;
  bool is_double_;  // an fp64 model
  std::vector<Segment> segments_;
  i64 steps_ = 0;
};

}  // namespace mcpp
