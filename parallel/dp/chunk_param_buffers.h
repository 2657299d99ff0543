// Parameters and gradients of one pipeline chunk. Each grid of ranks has a buffer of its own, because experts are
// reduced and sharded over different ranks than dense layers.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

class ChunkParamBuffers {
 public:
  /// Returns the ranks of a grid over which gradients are summed. Called for the grids with parameters.
  using GroupsOf = std::function<DataParallelGroups(GridKind)>;

  /// Creates the buffers, as make_param_and_grad_buffer() does, for the parameters of each grid. Throws an Internal
  /// error for a parameter whose gradients are not Partial along dp and cp.
  ChunkParamBuffers(std::span<const UnitParam> params, DType dtype, Device& device, const GroupsOf& groups,
                    const DataParallelOptions& options);

  /// Same contracts as in ParamAndGradBuffer, applied to all buffers.
  void acquire(int unit, Use use) const;
  void release(int unit, Use use, bool last) const;
  void clear_grads() const;
  void publish() const;
  void set_exact_reduction(bool is_exact) const;
  void end_step(const Tensor& factor) const;
  bool reduces_every_microbatch() const { return buffers_.front()->reduces_every_microbatch(); }
  void visit_weights(const ParamAndGradBuffer::PartVisitor& f) const;
  void visit_stored_weights(const ParamAndGradBuffer::StoredPartVisitor& f) const;
  void visit_grads(const ParamAndGradBuffer::PartVisitor& f) const;

  /// Returns the buffers, at least one, in the order of GridKind.
  std::vector<ParamAndGradBuffer*> buffers() const;

 private:
  std::vector<std::unique_ptr<ParamAndGradBuffer>> buffers_;
};

}  // namespace mcpp
