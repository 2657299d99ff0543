// Projection to queries, keys and values, sharded by query group across the tensor-parallel group.
#pragma once
#include <memory>
#include <string>

#include "base/stored_ref.h"
#include "model/config/context.h"
#include "parallel/cp/head_exchange.h"
#include "parallel/tp/linear.h"

namespace mcpp {

/// x [s, b, h] (sequence parallel: [s / tp, b, h]) -> Qkv. The weight is a box of [groups, (q + 2) * head_dim, h] with
/// whole groups. With fewer groups than ranks it is two boxes: the rows of this rank's query heads, and the key and
/// value rows of their group, which are replicated on the ranks that share it. Each of these ranks has the part of the
/// keys' and values' gradient that comes from its own queries.
class QkvProjection {
 public:
  /// `layer`: global index, starting at 0.
  QkvProjection(const std::string& name, i64 layer, StoredRef<ModelContext> context);

  Qkv forward(const Tensor& x, MicrobatchContext& pass);
  /// Returns uninitialized tensors of the shapes that forward returns for s positions of b samples.
  Qkv empty(i64 s, i64 b) const;
  /// Returns dx.
  Tensor backward(const Qkv& gradient, MicrobatchContext& pass);
  /// See Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);
  bool shares_groups() const { return keys_values_ != nullptr; }
  /// Number of query groups whose keys and values this rank has.
  i64 query_groups() const { return queries_->weight.box.shape[0]; }

 private:
  std::unique_ptr<LinearSlice> make_slice(const std::string& name, i64 groups, i64 first_row, i64 rows) const;

  const ModelContext& context_;
  TensorParallelRegion region_;
  Fp8Scaling fp8_;
  std::unique_ptr<LinearSlice> queries_;      // or queries, keys and values
  std::unique_ptr<LinearSlice> keys_values_;  // null unless ranks share groups
};

}  // namespace mcpp
