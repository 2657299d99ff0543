// Weight update: global gradient norm, clipping, and an update rule per parameter group over the flat vectors, with
// fp32 states and, for bf16 and fp16 models, fp32 master weights or, in bf16, stochastic rounding.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/offload/state_store.h"
#include "optimizer/config.h"
#include "optimizer/matrix_gatherer.h"
#include "optimizer/param_group.h"
#include "optimizer/row_scale.h"
#include "optimizer/staged_update.h"
#include "optimizer/update_rule.h"
#include "optimizer/weight_average.h"
#include "parallel/dp/buckets/buffer.h"
#include "tensor/ops/ops.h"

namespace mcpp {

struct StepResult {
  double grad_norm = 0;     ///< global L2 norm of gradient * grad_scale, before clipping
  bool is_skipped = false;  ///< true if the norm was not finite and nothing was changed
};

/// Name of the state with the fp32 master weights of a bf16 or fp16 model; other states are UpdateRule::states() and
/// kEmaState.
inline constexpr std::string_view kMasterState = "master";

/// For each grid, the ranks whose shard()s together contain complete matrices. Without an entry for a grid, the shard()
/// of this rank alone contains complete matrices.
using MatrixGroups = std::map<GridKind, Communicator*>;

/// Returns the configured storage of the states of weights on `device`. `supports_snapshots` allows asynchronous saves.
StateStoreOptions state_store_options(const OptimizerConfig& config, Device& device, bool supports_snapshots);

class Optimizer {
 public:
  /// Allocates the states for the elements in each buffer's shard() in `states`, which must be empty (nullptr: a new
  /// store in device memory). Master and averaged weights are initialized from the model's weights. `holders`: for
  /// rules that need complete matrices; collective over these ranks. `copies`: engine for copies between the buffers'
  /// device and the host, for remote updates (nullptr: a new one).
  Optimizer(std::span<ParamAndGradBuffer* const> buffers, const OptimizerConfig& config, NormScope scope = {},
            const MatrixGroups& holders = {}, std::unique_ptr<StateStore> states = nullptr,
            std::unique_ptr<AsyncCopyEngine> copies = nullptr);

  /// Performs one update. Call after finish() and before publish() of every buffer. `grad_scale` converts the summed
  /// gradient to the gradient of the mean loss (1 / number of target tokens). If the gradient norm is not finite,
  /// weights, states and step counter are unchanged on every rank. Clips as Megatron-LM does: by clip_grad / (norm +
  /// 1e-6) if that is below 1. group_of() decides which parameters get no weight decay.
  StepResult step(double lr, double weight_decay, double grad_scale = 1);

  /// Parts of step() for callers that must not block: queue compute_update_scale(), reduce the factor over the
  /// ranks that hold other gradients or the same weights, queue update(), and call count_step() before the next
  /// update() if this one was applied.
  ///
  /// Queues ops::compute_update_scale() for this gradient by `rule`, whose clip_grad and round_norm_to_fp32 are set
  /// by this function, and for the loss in `totals`.
  Tensor compute_update_scale(const Tensor& totals, StepRule rule) const;
  /// Queues the update. `factor`: fp64 [1]; if it is not finite nothing is changed. `scales`: scaling of updated
  /// weights, before they enter the average; must be empty if `factor` is not finite.
  void update(double lr, double weight_decay, const Tensor& factor, const RowScales& scales = {});
  void count_step() { ++steps_; }

  /// Makes compute_update_scale() sum the squares of gradients by layer, for layer_squares(). `buffers` must be those
  /// of the constructor. Call it between steps, on all ranks or on none.
  void record_layer_squares(std::span<ParamAndGradBuffer* const> buffers) {
    collect_norm_grads(buffers, /*by_layer=*/true);
  }
  /// Layer of which this rank counts gradients in the norm.
  struct NormLayer {
    GridKind grid;
    std::string name;  ///< layer_of() its parameters
  };
  /// Returns these layers. Requires record_layer_squares().
  std::vector<NormLayer> norm_layers() const;
  /// Returns the sums of squares of these gradients at the last compute_update_scale(), fp64 [norm_layers()]. Summed
  /// over the layers of one replica of the gradients, they are the square of the norm, without grad_scale.
  const Tensor& layer_squares() const { return layer_squares_; }

  /// Conversions for bf16 and fp16 models. No effect if the model's weights are the master weights themselves. With
  /// OptimizerConfig::store_param_remainders the weights are a part of the master weights and always consistent with
  /// them.
  void copy_model_to_master();  ///< call after only the model's weights were loaded
  void copy_master_to_model();  ///< call after master weights were loaded, and before publish()

  /// Returns true if master weights are stored: for bf16 and fp16 models, unless weights are rounded stochastically.
  bool stores_master() const { return has_master_copy() && !config_.stochastic_rounding; }
  /// Sets the seed of stochastic rounding.
  void set_rounding_seed(u64 seed) { rounding_seed_ = seed; }

  bool has_ema() const { return mcpp::has_ema(config_); }
  /// Sets averaged weights, if kept, to the weights. Call after weights were loaded without their average.
  void start_ema();
  /// Exchanges the weights with the averaged weights, which must be kept, for an evaluation; call publish() afterwards.
  /// A second call restores both bitwise.
  void swap_ema();

  /// Calls f(state, param, first, values) for each state of each parameter. `values` are the stored states of the
  /// parameter's elements [first, first + values.numel()) in its box that this rank updates. Master weights are visited
  /// only if stores_master(). The order is fixed. Parameters of which
  /// this rank updates no elements are skipped.
  using StoredStateVisitor = std::function<void(std::string_view state, Param&, i64 first, const StoredArray& values)>;
  void visit_stored_state(const StoredStateVisitor& f) const;
  /// Describes where the states are stored, for the log; empty if they are on the device of the weights.
  std::string describe_states() const { return states_->describe(); }
  OffloadedBytes offloaded_state_bytes() const { return states_->offloaded_bytes(); }

  /// Returns the number of updates, excluding skipped steps. Bias correction depends on it, so checkpoints must include
  /// it.
  i64 steps() const { return steps_; }
  void set_steps(i64 steps) { steps_ = steps; }

 private:
  void gather_matrices(std::span<ParamAndGradBuffer* const> buffers, const MatrixGroups& holders);
  void add_segments(const ParamAndGradBuffer& buffer, const ShardSegment& shard);
  void add_segment(const ParamAndGradBuffer& buffer, const ShardSegment& shard, OptimizerKind kind,
                   std::vector<UpdateRun> runs);
  void collect_norm_grads(std::span<ParamAndGradBuffer* const> buffers, bool by_layer);
  const UpdateRule& rule_of(OptimizerKind kind);
  /// Waits until no communication of the last publish() uses the weights, so that a pass may change them.
  void wait_for_gathers() const;
  /// Returns true if updates compute weights that are separate from the model's weights.
  bool has_master_copy() const { return is_low_precision(dtype_); }
  StorageForm master_form() const;
  KeptWeights kept_weights() const { return {.has_master = has_master_copy(), .has_ema = has_ema()}; }
  std::vector<std::size_t> segments_of(PassKind kind) const;
  /// Returns true if an update moves no data between devices.
  bool is_resident() const;
  /// Calls `f` for the parts of all segments. PassKind::Prepare visits only segments whose rule needs complete
  /// matrices.
  void for_each_part(PassKind kind, const UpdateFunction& f);
  void visit_run(std::size_t index, const UpdateRun& run, const StoredStateVisitor& f) const;

  OptimizerConfig config_;
  NormScope scope_;
  Device& device_;
  DType dtype_;  // dtype of the model
  std::map<OptimizerKind, std::unique_ptr<UpdateRule>> rules_;
  std::vector<UpdateSegment> segments_;
  std::unique_ptr<StateStore> states_;  // by segment
  StagedUpdate staged_update_;
  bool needs_staging_ = false;  // a state is encoded, or on a different device than its weights or gradient
  std::vector<std::unique_ptr<MatrixGatherer>> matrices_;  // by grid; empty unless the configured rule needs them
  /// Gradients of this rank that count in the norm, by layer; under "" for all layers unless record_layer_squares() was
  /// called. Has an entry for every grid of the scope.
  std::map<GridKind, std::map<std::string, std::vector<Tensor>>> norm_grads_;
  mutable Tensor layer_squares_;  // in the order of norm_grads_
  i64 steps_ = 0;
  u64 rounding_seed_ = 0;
};

}  // namespace mcpp
