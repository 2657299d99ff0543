// The two things that ZeRO cuts over the data-parallel ranks or leaves whole, each behind an interface: the parameters
// and the gradients of one buffer. ZeroBuffer (zero.h) puts one of each together.
#pragma once
#include <vector>

#include "nn/offload/state_store.h"
#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

/// What stores know of their buffer.
struct StoreContext {
  const BufferPlan& plan;
  std::span<Param* const> params;
  Device& device;
  DataParallelGroups groups;
  /// This rank updates part `part` of `parts` equal ones of every bucket: those of groups.shard, or the whole.
  int part = 0, parts = 1;
  GradWire grad_wire = GradWire::Full;

  /// This rank's part of a tensor of a whole bucket.
  Tensor own_part(const Tensor& bucket) const {
    const i64 count = bucket.numel() / parts;
    return bucket.flat(part * count, count);
  }
  /// The part of a bucket inside `shards`, which holds this rank's parts of all buckets one after another.
  Tensor shard_of(const Tensor& shards, std::size_t bucket) const {
    return shards.flat(plan.buckets[bucket].begin / parts, plan.buckets[bucket].size() / parts);
  }
  /// Starts the sum of a whole bucket's gradients over groups.shard, of which this rank gets its part: in `own`, which
  /// may be that of `full`; the rest of `full` is kept. Both live until wait().
  Work reduce_scatter(const Tensor& full, Tensor& own) const;
  /// Makes `member` (value or main_grad) of the bucket's parameters views of `full`, the tensor of the whole bucket.
  void make_views(std::size_t bucket, const Tensor& full, Tensor Param::*member) const;
  void drop_views(std::size_t bucket, Tensor Param::*member) const;
  /// Zeroes what lies between and behind the bucket's parameters.
  void zero_padding(std::size_t bucket, const Tensor& full) const;
  /// Gradients of the bucket that nothing has written since clear_grad() become zero.
  void zero_missing_grads(std::size_t bucket) const;
};

/// zero_missing_grads of one parameter.
void zero_missing_grad(Param& param);

class ParamStore {
 public:
  virtual ~ParamStore() = default;
  /// Param::value of the bucket's parameters is valid from here until drop(). Not called again in between.
  /// `is_nested`: inside the use of a later unit, so that it does not tell which unit comes next.
  virtual void fetch(std::size_t bucket, Use use, bool is_nested) = 0;
  virtual void drop(std::size_t bucket) = 0;
  virtual void publish() = 0;
  /// Waits until no communication reads this rank's shards any more: they may be changed.
  virtual void finish_gathers() = 0;
  /// What this rank updates of the bucket. The storage never moves. Undefined where it is away.
  virtual Tensor shard(std::size_t bucket) const = 0;
  /// Where that is otherwise: segment `bucket`, of one vector. Null where it is in memory.
  virtual StateStore* away() const { return nullptr; }
};

class GradStore {
 public:
  virtual ~GradStore() = default;
  virtual void begin_step() = 0;
  /// Param::main_grad of the bucket's parameters is valid from here until release(). Not called again in between.
  virtual void acquire(std::size_t bucket) = 0;
  virtual void release(std::size_t bucket, int unit, bool last) = 0;
  virtual void finish() = 0;
  /// What this rank updates of the bucket. The storage never moves.
  virtual Tensor shard(std::size_t bucket) const = 0;
  /// As those of ParamAndGradBuffer.
  virtual void sum_in_full(bool) {}
  virtual void end_step(const Tensor&) {}
  virtual std::span<const PowerSgdState> power_sgd_states() const { return {}; }
};

}  // namespace mcpp
