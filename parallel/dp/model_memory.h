// The parameters and gradients of one pipeline chunk: a buffer for each grid of ranks on which they are placed, since
// the ranks over which gradients are summed, and which ZeRO cuts over, are others for the experts.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

class ModelMemory {
 public:
  /// The ranks of a grid over which gradients are summed; asked for those that some parameter is placed on.
  using GroupsOf = std::function<DataParallelGroups(GridKind)>;

  /// As make_param_and_grad_buffer(), for the parameters of each grid. An Internal error for one whose gradients along
  /// dp and cp are not parts of the sum that the buffer makes.
  ModelMemory(std::span<const UnitParam> params, DType dtype, Device& device, const GroupsOf& groups,
              const DataParallelOptions& options);

  /// What ParamAndGradBuffer promises, of all of them.
  void acquire(int unit, Use use) const;
  void release(int unit, Use use, bool last) const;
  void clear_grads() const;
  void publish() const;
  void sum_in_full(bool in_full) const;
  void end_step(const Tensor& factor) const;
  bool reduces_every_pass() const { return buffers_.front()->reduces_every_pass(); }
  void visit_weights(const ParamAndGradBuffer::PartVisitor& f) const;
  void visit_stored_weights(const ParamAndGradBuffer::StoredPartVisitor& f) const;
  void visit_grads(const ParamAndGradBuffer::PartVisitor& f) const;

  /// At least one, in the order of GridKind.
  std::vector<ParamAndGradBuffer*> buffers() const;

 private:
  std::vector<std::unique_ptr<ParamAndGradBuffer>> buffers_;
};

}  // namespace mcpp
