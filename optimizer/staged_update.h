// Updates of parts whose states are encoded, or are on a different device than the weights. Decodes the states and
// copies weights and gradients to the device of the states, prefetching the next part during the update of the current
// part. Usually states are on the host and weights are on a GPU. If weights are offloaded and states are not, the roles
// are reversed.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nn/offload/state_store.h"
#include "optimizer/param_group.h"
#include "optimizer/update_rule.h"
#include "parallel/dp/buckets/buffer.h"
#include "tensor/host/pinned_buffer_pool.h"

namespace mcpp {

/// Run of elements of a ShardSegment that are in the same parameter group.
struct UpdateRun {
  i64 begin, count;  ///< range in the tensors of the shard
  i64 offset;        ///< offset in the states
  ParamGroup group;
};

/// Elements of a ShardSegment that one rule updates. A segment of the StateStore contains only the states of these
/// elements, run after run: the master weights (if separate) or their remainders, the states of the rule, and the
/// averaged weights (if kept).
struct UpdateSegment {
  const ParamAndGradBuffer* buffer;
  ShardSegment shard;
  const UpdateRule* rule;
  std::vector<StorageForm> forms;  ///< storage forms of the states
  std::vector<UpdateRun> runs;

  i64 count() const { return runs.back().offset + runs.back().count; }
  /// Returns the vectors that store the states. `wide` is the accumulate dtype.
  std::vector<VectorSpec> vectors(DType wide) const;
  /// Returns the states from their vectors.
  std::vector<StoredArray> states(std::span<const StoredArray> vectors, DType wide) const;
  /// Returns elements [begin, begin + count) of the gradient, converted to `wide` if necessary.
  Tensor gradient(i64 begin, i64 count, DType wide) const;
};

/// Kind of a pass over the states. It determines the segments that the pass visits and the tensors that it changes in
/// addition to the states.
enum class PassKind { Update, Prepare };

/// Function that updates a part, which is on one device and entirely in the accumulate dtype.
using UpdateFunction = std::function<void(const UpdateRule& rule, UpdatePart& part, const ParamGroup& group)>;

/// States that an optimizer keeps in addition to the states of the update rule.
struct KeptWeights {
  bool has_master = false;  ///< master weights, or the decoded weights of the model, as the first state
  bool has_ema = false;     ///< averaged weights, as the last state
};

/// Returns a part with the weights `model`. `states` include `kept`.
UpdatePart make_update_part(const Tensor& model, std::vector<Tensor> states, const Tensor& grads, KeptWeights kept);

class StagedUpdate {
 public:
  /// `device` holds the gradients, and `copies` is its copy engine. `dtype` is the dtype of the model.
  StagedUpdate(Device& device, DType dtype, KeptWeights kept, std::unique_ptr<AsyncCopyEngine> copies);

  /// Calls `f` for parts of each run of the segments in `order`. The states of a segment are in the segment of `states`
  /// with the same number. A part of PassKind::Prepare has no weights if these are stored as remainders or not stored.
  void for_each_part(StateStore& states, std::span<const UpdateSegment> segments, const std::vector<std::size_t>& order,
                     PassKind kind, const UpdateFunction& f);

 private:
  DType dtype_;
  KeptWeights kept_;
  PinnedBufferPool pinned_buffers_;
  std::unique_ptr<AsyncCopyEngine> copy_engine_;  // declared after the buffers, which its copies use
};

/// Returns a copy of `values` in the memory of `device`, or `values` if it is already there. Blocks the host until the
/// ops that compute `values` are done.
Tensor copy_to(Device& device, const Tensor& values);

}  // namespace mcpp
