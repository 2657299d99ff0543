// Interfaces of the parameter store and the gradient store of one buffer. Each store is replicated or sharded over the
// data-parallel ranks. ZeroBuffer (zero.h) combines two stores.
#pragma once
#include <vector>

#include "nn/offload/state_store.h"
#include "parallel/dp/buckets/buffer.h"
#include "parallel/layout.h"
#include "tensor/tensor.h"

namespace mcpp {

// Gradient reduction with compressed messages: rounded to bf16, as with Megatron-LM's
// reduce_scatter_with_fp32_accumulation, or int8 (qgZ of ZeRO++, Wang et al. 2023, section 3.3).

/// Reduce-scatters `full` (fp32 or fp64) over groups.shard into `part`, like Communicator::reduce_scatter, but sends
/// every part, including this rank's own, encoded by ops::pack(). `format` must not be Full. Parts are exchanged by
/// all-to-all, decoded, and summed in rank order.
///
/// With hpZ, it reduces twice: within the node, where each rank receives the parts for all ranks with its index on
/// their nodes, and then these ranks reduce the sums of the nodes. A node thus sends each gradient once instead of once
/// per rank. A value that is not finite on any rank is not finite in the sum. Works may outlive `full` but not the
/// groups.
Work compressed_reduce_scatter(const DataParallelGroups& groups, GradReduceFormat format, const Tensor& full,
                               const Tensor& part);

/// Properties of the buffer that its stores use.
struct StoreContext {
  const BufferPlan& plan;
  std::span<Param* const> params;
  Device& device;
  DataParallelGroups groups;
  /// This rank updates part `part` of every bucket. A bucket has `parts` equal parts: one per rank of groups.shard, or
  /// one in total.
  int part = 0, parts = 1;
  GradReduceFormat grad_reduce_format = GradReduceFormat::Full;

  /// Returns this rank's part of a tensor of a full bucket.
  Tensor own_part(const Tensor& bucket) const {
    const i64 count = bucket.numel() / parts;
    return bucket.flat(part * count, count);
  }
  /// Returns the part of a bucket inside `shards`, which holds this rank's parts of all buckets consecutively.
  Tensor shard_of(const Tensor& shards, std::size_t bucket) const {
    return shards.flat(plan.buckets[bucket].begin / parts, plan.buckets[bucket].size() / parts);
  }
  /// Starts summing a full bucket's gradients over groups.shard and stores this rank's part in `own`, which may be its
  /// part of `full`; the rest of `full` is unchanged. Both tensors must stay alive until wait().
  Work reduce_scatter(const Tensor& full, Tensor& shard) const;
  /// Makes `member` (value or main_grad) of the bucket's parameters views of `full`, the tensor of the full bucket.
  void make_views(std::size_t bucket, const Tensor& full, Tensor Param::*member) const;
  void drop_views(std::size_t bucket, Tensor Param::*member) const;
  /// Zeroes the padding between and after the bucket's parameters.
  void zero_padding(std::size_t bucket, const Tensor& full) const;
  /// Zeroes the bucket's gradients that were not written since clear_grad().
  void zero_missing_grads(std::size_t bucket) const;
};

/// Zeroes the gradient of a parameter if it was not written since clear_grad().
void zero_missing_grad(Param& param);

class ParamStore {
 public:
  virtual ~ParamStore() = default;
  /// Makes Param::value of the bucket's parameters valid until drop(). Must not be called again in between. `is_nested`
  /// marks a use inside the use of a later unit, from which the next unit cannot be predicted.
  virtual void fetch(std::size_t bucket, Use use, bool is_nested) = 0;
  virtual void drop(std::size_t bucket) = 0;
  virtual void publish() = 0;
  /// Waits until no communication reads this rank's shards, so that they may be modified.
  virtual void finish_gathers() = 0;
  /// Returns the part of the bucket that this rank updates. The storage never moves. Undefined if offloaded.
  virtual Tensor shard(std::size_t bucket) const = 0;
  /// Returns the store of offloaded weights, with one segment of one vector per bucket; null if they are in memory.
  virtual StateStore* offload_store() const { return nullptr; }
};

class GradStore {
 public:
  virtual ~GradStore() = default;
  virtual void begin_step() = 0;
  /// Makes Param::main_grad of the bucket's parameters valid until release(). Must not be called again in between.
  virtual void acquire(std::size_t bucket) = 0;
  virtual void release(std::size_t bucket, int unit, bool is_last) = 0;
  virtual void finish() = 0;
  /// Returns the part of the bucket that this rank updates. The storage never moves.
  virtual Tensor shard(std::size_t bucket) const = 0;
  // Parts of the ParamAndGradBuffer functions of the same names. The defaults are for stores without PowerSGD.
  virtual void set_exact_reduction(bool) {}
  virtual void end_step(const Tensor&) {}
  virtual std::span<const PowerSgdState> power_sgd_states() const { return {}; }
};

}  // namespace mcpp
