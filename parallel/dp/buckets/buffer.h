// Parameter and gradient buffers of a model, kept consistent over the data-parallel ranks. The loop over units (blocks)
// calls acquire before and release after each use of a unit. The stages of ZeRO (Rajbhandari et al., "ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", 2020) combine replicated and sharded parameters and
// gradients (zero.h):
//    stage  parameters        gradients
//    0      ReplicatedParams  ReplicatedGrads, all-reduced once per step
//    1      ReplicatedParams  ReplicatedGrads, reduce-scattered once per step to the rank that updates them
//    2      ReplicatedParams  ShardedGrads, reduce-scattered whenever backward leaves a unit
//    3      ShardedParams     ShardedGrads; this rank's shard of the weights may be offloaded
// In stages 1 to 3 each rank updates its shard of the weights, and its optimizer holds state for that shard only.
//
// Sums use rank order, so stages 0 and 1 are bitwise identical, and so are stages 2 and 3. All four agree if a step has
// one microbatch. With more, stages 0 and 1 sum over microbatches before ranks, stages 2 and 3 after, which rounds
// differently.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "nn/offload/state_store.h"
#include "nn/param.h"
#include "parallel/dp/buckets/plan.h"

namespace mcpp {

enum class Use : u8 { Forward, Backward };

struct UnitParam {
  Param* param;  ///< must outlive the buffer; each parameter once
  int unit;      ///< must not decrease along the list
};

/// Data-parallel groups of a model. Must outlive the buffer.
struct DataParallelGroups {
  Communicator& shard;      ///< ranks among which ZeRO shards
  Communicator& replicate;  ///< ranks that hold the same shard: more than one with hybrid sharding (HSDP)
  /// Hierarchy of `shard` over nodes, if configured: the consecutive ranks of `shard` on this rank's node, and the
  /// ranks with the same index on all nodes. Both are set, or neither. In stage 3 the ranks of a node keep a second
  /// copy of the weights, sharded among them.
  Communicator* intra_node = nullptr;
  Communicator* inter_node = nullptr;
  /// Ranks that hold the other shards of the weights along the tensor-parallel axis; null: none.
  Communicator* tensor_parallel = nullptr;
};

/// Elements [begin, begin + count) of the flat vectors, whose weights this rank updates.
struct ShardSegment {
  i64 begin = 0, count = 0;
  Tensor params;  ///< 1-D, in the model's dtype; undefined if offloaded
  Tensor grads;   ///< 1-D, fp32 (fp64 in an fp64 model; bf16 with main_grads_dtype bf16); padding is zero
  StateStore* offload_store = nullptr;  ///< store of offloaded weights
  std::size_t offload_segment = 0;      ///< segment of the store that holds these weights as its only vector

  /// Returns weights [first, first + n) of the segment, as stored between uses.
  StoredArray stored_weights(i64 first, i64 n) const {
    return (offload_store ? offload_store->stored(offload_segment, 0) : StoredArray(params)).part(first, n);
  }
};

/// PowerSGD state of a parameter on one rank.
struct PowerSgdState {
  Param* param;
  /// Error feedback in the shape of the parameter: the part of this rank's gradients that previous sums omitted.
  /// Initially zero.
  Tensor error;
  Tensor factor;  ///< [columns, rank], identical on all ranks of `shard`: start of the next power iteration
};

/// Buffer of one pipeline chunk. In each step call clear_grads(), then acquire/release of units per microbatch in
/// forward and backward, then finish(), after which shard() holds gradients summed over all groups. After updating the
/// weights in shard(), call publish(). All ranks must make the same calls in the same order.
class ParamAndGradBuffer {
 public:
  virtual ~ParamAndGradBuffer() = default;
  ParamAndGradBuffer(const ParamAndGradBuffer&) = delete;
  ParamAndGradBuffer& operator=(const ParamAndGradBuffer&) = delete;

  /// Makes the weights of `unit` and, for Backward, memory for its gradients available: value and main_grad of its
  /// parameters are valid until the matching release. Uses of a unit may nest; in stages 2 and 3, the end of the
  /// outermost Backward use reduces its gradients. If forward uses units in ascending and backward in descending order,
  /// stage 3 gathers weights ahead. A use nested in the use of a later unit (tied embeddings) does not count as a step
  /// of this loop.
  virtual void acquire(int unit, Use use) = 0;
  /// Ends a use. `is_last` marks the unit's last use of that kind in the step; with Backward its gradients are then
  /// complete, including delayed weight gradients. Inside a nested use, takes effect when the outermost one ends.
  virtual void release(int unit, Use use, bool is_last) = 0;
  /// Completes the reduction of all gradients, including units never released as last, and waits for it.
  virtual void finish() = 0;
  /// Makes changed weights in shard() visible to the next acquire on all ranks. Call it after updating or loading
  /// weights, while no unit is in use.
  virtual void publish() = 0;
  /// Returns this rank's shard of every bucket, which it updates, in increasing order of `begin`. The storage never
  /// moves. Weights may be written from now, or from finish(), until publish().
  virtual std::vector<ShardSegment> shard() const = 0;
  /// Enables or disables exact sums of gradients despite power_sgd_rank, from the next clear_grads() on. The PowerSGD
  /// state is unchanged.
  virtual void set_exact_reduction(bool is_exact) = 0;
  /// Commits the PowerSGD state after each update if `factor`, fp64 [1], is finite, i.e. the step was not skipped.
  virtual void end_step(const Tensor& factor) = 0;
  /// Returns the PowerSGD states; empty unless power_sgd_rank is set.
  virtual std::span<const PowerSgdState> power_sgd_states() const = 0;
  /// Returns true if gradients are reduced after every microbatch (stages 2 and 3), not once per step.
  virtual bool reduces_every_microbatch() const = 0;

  /// Marks all gradients as zero, so that the next gradients overwrite them. Does not write memory.
  void clear_grads();

  /// Calls f(param, first, values) for each part of a parameter in shard(), where `values` is a flat view of elements
  /// [first, first + values.numel()) of the param's box. Offloaded weights are fetched for the call and written back.
  using PartVisitor = std::function<void(Param&, i64 first, Tensor values)>;
  void visit_weights(const PartVisitor& f) const;
  /// Like visit_weights(), but passes the storage of the weights, which can be read and written later.
  using StoredPartVisitor = std::function<void(Param&, i64 first, const StoredArray& values)>;
  void visit_stored_weights(const StoredPartVisitor& f) const;
  /// Calls f like visit_weights(), for gradients.
  void visit_grads(const PartVisitor& f) const;

  /// Returns the ranks that hold the same shard() as this rank. They can divide the work of saving it.
  virtual Communicator& replicas() const = 0;
  /// Returns the grid on which all parameters of the buffer are placed.
  GridKind grid() const { return params_.empty() ? GridKind::Dense : params_.front()->placement.grid; }
  const BufferPlan& plan() const { return plan_; }
  /// Returns the parameters in the order of plan().params.
  std::span<Param* const> params() const { return params_; }
  DType dtype() const { return dtype_; }
  Device& device() const { return device_; }

 protected:
  ParamAndGradBuffer(std::span<const UnitParam> params, DType dtype, Device& device, int shards, i64 bucket_elements);
  virtual void begin_step() = 0;  ///< part of clear_grads()

 private:
  /// Calls f(param, first, at, count) for each part of a parameter in the segment: `count` elements starting at element
  /// `at` of the segment.
  template <class F>
  void for_each_part(const ShardSegment& segment, F&& f) const;
  void visit_parts(const ShardSegment& segment, const Tensor& values, const PartVisitor& f) const;

  std::vector<Param*> params_;
  DType dtype_;
  Device& device_;
  BufferPlan plan_;
};

}  // namespace mcpp
