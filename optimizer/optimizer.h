// The update of the weights: global gradient norm, clipping, and each parameter by the rule of its group over the flat
// vectors, with fp32 states and, for bf16 and fp16 models, fp32 master weights.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "nn/offload/state_store.h"
#include "optimizer/config.h"
#include "optimizer/norm_scope.h"
#include "optimizer/param_group.h"
#include "optimizer/remote_part.h"
#include "optimizer/update_rule.h"
#include "optimizer/weights_in_use.h"
#include "optimizer/whole_matrices.h"
#include "parallel/dp/buckets/buffer.h"
#include "tensor/ops/ops.h"

namespace mcpp {

struct StepResult {
  double grad_norm = 0;     ///< global L2 norm of gradient * grad_scale, before clipping
  bool skipped = false;     ///< the norm was not finite: nothing was changed
  double lr = 0;            ///< as given
  double weight_decay = 0;  ///< as given
};

/// The state beside those of UpdateRule::states(): the weights of a bf16 or fp16 model in fp32.
inline constexpr std::string_view kMasterState = "master";

/// Per grid, the ranks whose shard()s make up whole matrices; a grid without = this rank alone has all.
using MatrixHolders = std::map<GridKind, Communicator*>;

class Optimizer {
 public:
  /// Allocates the state of what the buffers' shard() gives this rank, in `states`, which is empty (null: in a store on
  /// the device). Master weights start as the model's weights. `holders`: for rules that need whole matrices. `copies`:
  /// those of the buffers' device, by which it and the host exchange what is updated there (null: made here). The
  /// buffers and groups must outlive the optimizer, and all ranks of `holders` make theirs.
  Optimizer(std::span<ParamAndGradBuffer* const> buffers, const OptimizerConfig& config, NormScope scope = {},
            const MatrixHolders& holders = {}, std::unique_ptr<StateStore> states = nullptr,
            std::unique_ptr<SideCopies> copies = nullptr);

  /// One update, after every buffer's finish(); the caller then calls publish() on each. `grad_scale` turns the summed
  /// gradient into that of the loss (1 / number of target tokens). A gradient whose norm is not finite leaves weights,
  /// state and step counter as they are, on every rank. Clipping as Megatron-LM does: by clip_grad / (norm + 1e-6)
  /// where that is below 1. group_of() says which parameters get no weight decay.
  StepResult step(double lr, double weight_decay, double grad_scale = 1);

  /// The parts of step(), for a caller that does not wait: it queues decide_update(), agrees on the factor with the
  /// ranks that hold other gradients or the same weights, queues update(), and calls count_step() before the next
  /// update() when this one was taken.
  ///
  /// What ops::decide_update() says of this gradient by `rule`, whose clip_grad and rounds_norm are filled in here, and
  /// of the loss in `totals`.
  Tensor decide_update(const Tensor& totals, StepRule rule) const;
  /// `factor`: fp64 [1]; nothing is changed when it is not finite.
  void update(double lr, double weight_decay, const Tensor& factor);
  void count_step() { ++steps_; }

  /// For bf16 and fp16 models; without effect where the model's weights are the master weights themselves. With
  /// OptimizerConfig::store_param_remainders these are a part of the master weights, and go with them at all times.
  void copy_model_to_master();  ///< after other weights were loaded into the model alone
  void copy_master_to_model();  ///< after master weights were loaded; the caller then publishes

  /// Calls f(state, param, first, values) for each state of each parameter: `values` are those of the param's elements
  /// [first, first + values.numel()) that this rank updates, counted in its box, where the state lies between updates.
  /// Master comes up only where it is a copy (bf16 and fp16 models). The order is fixed; parameters of which this rank
  /// updates nothing are left out.
  using StoredStateVisitor =
      std::function<void(std::string_view state, Param&, i64 first, const std::shared_ptr<StoredNumbers>& values)>;
  void visit_stored_state(const StoredStateVisitor& f) const;
  /// The same where all states are in tensors: `values` is a flat view.
  using StateVisitor = std::function<void(std::string_view state, Param&, i64 first, Tensor values)>;
  void visit_state(const StateVisitor& f) const;
  /// Where the states are kept, for the log; empty when with the weights.
  std::string describe_states() const { return states_->describe(); }
  BytesAway states_away() const { return states_->bytes_away(); }

  /// Updates done; skipped steps do not count. Bias correction depends on it, so it belongs in checkpoints.
  i64 steps() const { return steps_; }
  void set_steps(i64 steps) { steps_ = steps; }

 private:
  /// What is updated alike of a segment. The states hold only what the segment's rule updates, run after run.
  struct Run {
    i64 begin, count;  // in the tensors of the segment
    i64 at;            // in the states
    ParamGroup group;
  };
  /// What one rule updates of one contiguous range of a buffer's flat vectors.
  struct Segment {
    const ParamAndGradBuffer* buffer;
    i64 begin;  // in the flat vectors
    WeightsPlace model;
    Tensor grads;
    const UpdateRule* rule;
    StateCodec codec;
    std::vector<Run> runs;
  };

  void gather_matrices(std::span<ParamAndGradBuffer* const> buffers, const MatrixHolders& holders);
  void add_segments(const ParamAndGradBuffer& buffer, const ShardSegment& shard);
  void add_segment(const ParamAndGradBuffer& buffer, const ShardSegment& shard, OptimizerKind kind,
                   std::vector<Run> runs);
  void count_in_norm(const ParamAndGradBuffer& buffer, const ShardSegment& shard);
  const UpdateRule& rule_of(OptimizerKind kind);
  bool has_master_copy() const { return is_narrow(dtype_); }
  /// What is decoded and updated at once: of a run of a segment.
  struct PartPlace {
    std::size_t segment;
    const Run* run;
    i64 begin, count;  // in the run

    i64 in_states() const { return run->at + begin; }
    i64 in_segment() const { return run->begin + begin; }
  };
  std::vector<PartPlace> parts_of(const std::vector<std::size_t>& order) const;
  /// Widened where it is narrow.
  Tensor gradient_of(const PartPlace& place) const;
  /// `model`: the weights of its segment.
  UpdatePart part_of(const PartPlace& place, const Tensor& gradient, const Tensor& model,
                     std::span<const Tensor> states) const;
  /// The part is updated next, elsewhere than its weights are.
  void expect_part(const PartPlace& place, const Tensor& gradient, RemoteParts& remote) const;
  /// Which segments a pass over the states goes through, and what of a part it changes beside the states.
  enum class PassKind { Update, Prepare };
  std::vector<std::size_t> segments_of(PassKind kind) const;
  /// The weights of these segments are wanted, in this order.
  void expect_weights(const std::vector<std::size_t>& order) const;
  /// Whether nothing moves for an update.
  bool is_resident() const;
  /// Calls f(rule, part, group) for parts of each run of each segment, whose states are fetched meanwhile; Prepare:
  /// only where the rule needs whole matrices. A part is on the device of its states, all of it in the wide type.
  template <class F>
  void for_each_part(PassKind kind, F&& f);
  /// change(part), where its states are.
  template <class Change>
  void update_part(PassKind kind, UpdatePart& part, RemoteParts& remote, Change&& change);
  void visit_run(std::size_t segment, const Run& run, const StoredStateVisitor& f) const;

  OptimizerConfig config_;
  NormScope scope_;
  Device& device_;
  DType dtype_;  // of the model
  std::map<OptimizerKind, std::unique_ptr<UpdateRule>> rules_;
  std::vector<Segment> segments_;
  /// By segment: the master weights where these are a copy, or what the model's lack of them, then the states of its
  /// rule.
  std::unique_ptr<StateStore> states_;
  std::unique_ptr<HostRooms> rooms_;
  std::unique_ptr<SideCopies> copies_;                    // after the rooms, which they may use until these go
  std::vector<std::unique_ptr<WholeMatrices>> matrices_;  // by grid; none unless the configuration's rule needs them
  /// Gradients that make up this rank's part of the norm; every grid of the scope has its place.
  std::map<GridKind, std::vector<Tensor>> counted_;
  i64 steps_ = 0;
};

}  // namespace mcpp
