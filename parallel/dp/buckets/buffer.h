// The memory of a model's parameters and gradients, and the verbs that keep them consistent over the data-parallel
// ranks. The loop over units (blocks) calls acquire before and release after each use of a unit; the stages of ZeRO
// (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020) are
// combinations of what is cut over the ranks and what every rank holds whole (zero.h puts them together):
//   stage  parameters           gradients
//   0      whole_params.h       whole_grads.h, all-reduced once a step
//   1      whole_params.h       whole_grads.h, reduce-scattered once a step to the rank that updates them
//   2      whole_params.h       sharded_grads.h, reduce-scattered whenever backward leaves a unit
//   3      sharded_params.h     sharded_grads.h; this rank's part of the weights may be kept away
// With 1, 2 and 3 each rank updates its part of the weights, and its optimizer holds state for no more than that.
//
// Sums over ranks are by rank, so stages 0 and 1 give the same bits, and so do 2 and 3. All four agree when a step has
// one microbatch; with more, 0 and 1 add up microbatches before ranks and 2 and 3 after, which rounds differently.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/file.h"
#include "base/io/offload_tier.h"
#include "comm/communicator.h"
#include "nn/offload/state_store.h"
#include "nn/param.h"
#include "parallel/dp/buckets/grad_wire.h"
#include "parallel/dp/buckets/plan.h"
#include "tensor/host/side_copies.h"

namespace mcpp {

enum class Use : u8 { Forward, Backward };

struct UnitParam {
  Param* param;  ///< must outlive the buffer; each parameter once
  int unit;      ///< must not decrease along the list
};

/// Over which ranks a model is trained with different samples. Must outlive the buffer.
struct DataParallelGroups {
  Communicator& shard;      ///< those that share the work of ZeRO
  Communicator& replicate;  ///< those that hold the same shard: more than one rank in hybrid sharding (HSDP)
  /// Where `shard` reaches over several nodes and that is told: those of it on this rank's node, of neighbouring places
  /// in it, and those at the same place of all nodes, as many in each. Both or neither. With stage 3 the ranks of a
  /// node keep a second copy of the weights among themselves.
  Communicator* node = nullptr;
  Communicator* across = nullptr;
};

/// Stage 3: where the weights that a rank updates are kept.
struct ParamOffload {
  OffloadTier tier = OffloadTier::Device;
  Path folder = {};              ///< for files
  std::string key = {};          ///< of the configuration, which named the folder
  bool takes_snapshots = false;  ///< for saves beside the training
  /// Of the device, by which they come to it.
  std::function<std::unique_ptr<SideCopies>(Device&)> make_copies = make_side_copies;
};

struct DataParallelOptions {
  int zero_stage = 0;
  i64 bucket_elements = 40'000'000;  ///< gradients reduced together, as in plan_buffer; stages 2 and 3: a bucket a unit
  /// Stages 0, 1: reduce a bucket as soon as backward has finished it; otherwise nothing is sent before finish().
  /// Stages 2, 3: reduce a unit's gradients while backward computes the next one's.
  bool overlap_grad_reduce = true;
  /// Stages 2, 3: what ranks keep of the summed gradients, and send of those of a unit, is rounded to bf16. A unit's
  /// own are summed in the wide type, and so are those of ranks.
  bool bf16_grads = false;
  /// Stages 1, 2: publish() does not wait for the weights, the first use of each does. Stage 3: gather a unit ahead.
  bool overlap_param_gather = true;
  /// Stages 1 to 3: weights travel in a byte each (tensor/ops/narrow/pack.h), and all ranks, also their owner, compute
  /// with those that arrive; what is updated and saved is kept in full.
  bool quantized_weights = false;
  /// Stages 1 to 3: how gradients travel to the sum of shard, which is taken in full; with nodes, inside them first,
  /// and then what they sum up to.
  GradWire grad_wire = GradWire::Full;
  /// Stages 0, 1: sums of matrices of gradients over shard are taken by factors of this rank (power_sgd.h); 0: in full.
  i64 power_sgd_rank = 0;
  ParamOffload params = {};
};

/// Elements [begin, begin + count) of the flat vectors whose weights this rank updates.
struct ShardSegment {
  i64 begin = 0, count = 0;
  Tensor params;  ///< one axis, in the model's type; undefined where they are away
  Tensor grads;   ///< one axis, fp32 (fp64 in an fp64 model; bf16 with bf16_grads); padding is zero
  /// Where the weights are kept otherwise: the one vector of a segment of it.
  StateStore* away = nullptr;
  std::size_t place = 0;
};

/// What a rank remembers of a parameter whose gradients are summed by factors.
struct PowerSgdState {
  Param* param;
  Tensor error;   ///< of its shape: what the sums so far left out of this rank's gradients; zeros at the start
  Tensor factor;  ///< [columns, rank], the same on all ranks of shard: where the next sum begins to look
};

/// One per pipeline chunk. A step: clear_grads(), then per microbatch acquire/release of units by forward and backward,
/// then finish(), after which shard() holds gradients summed over all groups; after the update of what shard() gives,
/// publish(). All ranks call the same in the same order.
class ParamAndGradBuffer {
 public:
  virtual ~ParamAndGradBuffer() = default;
  ParamAndGradBuffer(const ParamAndGradBuffer&) = delete;
  ParamAndGradBuffer& operator=(const ParamAndGradBuffer&) = delete;

  /// Makes the weights of `unit` (and, for Backward, room for its gradients) ready to be used: value and main_grad of
  /// its parameters are valid until the matching release. Uses of a unit may nest, and with stages 2 and 3 it is the
  /// end of the outermost Backward use that sums its gradients over the ranks. Where forward uses units in rising and
  /// backward in falling order, stage 3 gathers weights ahead; a use inside that of a later unit (tied embeddings) does
  /// not count as a step of that loop.
  virtual void acquire(int unit, Use use) = 0;
  /// Ends a use. `last`: it was the unit's last of that kind in the step; with Backward its gradients are complete,
  /// deferred weight gradients included. Inside a nested use, it takes effect when the outermost ends.
  virtual void release(int unit, Use use, bool last) = 0;
  /// Completes the reduction of all gradients, also of units that were never released as last, and waits for it.
  virtual void finish() = 0;
  /// After shard()'s weights were changed: all ranks see the new ones at their next acquire. Also after loading. No
  /// unit is in use meanwhile.
  virtual void publish() = 0;
  /// What this rank updates, in increasing order of `begin`: its part of every bucket. The storage never moves. Weights
  /// may be written from here, or from finish(), until publish().
  virtual std::vector<ShardSegment> shard() const = 0;
  /// From the next clear_grads() on: whether sums of gradients are taken in full, although power_sgd_rank is set. What
  /// is remembered stays as it is.
  virtual void sum_in_full(bool in_full) = 0;
  /// After each update: `factor`, fp64 [1], is finite when the step was taken. One that was not leaves nothing behind
  /// in power_sgd_states().
  virtual void end_step(const Tensor& factor) = 0;
  /// Empty unless power_sgd_rank is set.
  virtual std::span<const PowerSgdState> power_sgd_states() const = 0;
  /// Whether gradients leave this rank after every microbatch (stages 2 and 3), not once a step.
  virtual bool reduces_every_pass() const = 0;

  /// Forgets all gradients: the next ones overwrite them. Writes no memory.
  void clear_grads();

  /// Calls f(param, first, values) for each part of a parameter in shard(): `values` is a flat view of the weights of
  /// elements [first, first + values.numel()) of the param's box. Weights that are away come for the call, and what was
  /// written goes back.
  using PartVisitor = std::function<void(Param&, i64 first, Tensor values)>;
  void visit_weights(const PartVisitor& f) const;
  /// The same where they are kept, to be read and written later.
  using StoredPartVisitor = std::function<void(Param&, i64 first, const std::shared_ptr<StoredNumbers>& values)>;
  void visit_stored_weights(const StoredPartVisitor& f) const;
  /// The same for gradients.
  void visit_grads(const PartVisitor& f) const;

  /// The ranks that hold the same shard() as this one, and could share the work of saving it.
  virtual Communicator& replicas() const = 0;
  /// That all its parameters are placed on.
  GridKind grid() const { return params_.empty() ? GridKind::Dense : params_.front()->placement.grid; }
  const BufferPlan& plan() const { return plan_; }
  /// In the order of plan().params.
  std::span<Param* const> params() const { return params_; }
  DType dtype() const { return dtype_; }
  Device& device() const { return device_; }

 protected:
  ParamAndGradBuffer(std::span<const UnitParam> params, DType dtype, Device& device, int shards, i64 bucket_elements);
  virtual void begin_step() = 0;  ///< part of clear_grads()

 private:
  /// Calls f(param, first, at, count) for each part of a parameter in the segment: `count` elements from `at` of it on.
  template <class F>
  void for_each_part(const ShardSegment& segment, F&& f) const;
  void visit_parts(const ShardSegment& segment, const Tensor& numbers, const PartVisitor& f) const;

  std::vector<Param*> params_;
  DType dtype_;
  Device& device_;
  BufferPlan plan_;
};

}  // namespace mcpp
