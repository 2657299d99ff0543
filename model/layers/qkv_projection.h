// The projection to queries, keys and values, split by query groups over the tensor-parallel group.
#pragma once
#include <memory>
#include <string>

#include "base/kept_ref.h"
#include "model/config/context.h"
#include "parallel/cp/qkv.h"
#include "parallel/tp/linear.h"

namespace mcpp {

/// x [s, b, h] (sequence parallel: [s / tp, b, h]) -> Qkv. The weight is the box
/// [groups, (q + 2) * head_dim, h] with all of some groups; with fewer groups than ranks, two boxes of it: the rows of
/// this rank's query heads, and the key and value rows of their group, which are also held by the other ranks that
/// share it. Each of these has the part of the keys' and values' gradient that comes from its own queries.
class QkvProjection {
 public:
  /// `layer` counts from 0 over the whole model.
  QkvProjection(const std::string& name, i64 layer, KeptRef<ModelContext> context);

  Qkv forward(const Tensor& x, Pass& pass);
  /// Uninitialised, of the shapes that forward gives for s positions of b samples.
  Qkv empty(i64 s, i64 b) const;
  /// Returns dx.
  Tensor backward(const Qkv& gradient, Pass& pass);
  /// As Module::gives().
  ActivationPlacement gives(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);
  bool shares_groups() const { return keys_values_ != nullptr; }
  /// That this rank has keys and values of.
  i64 query_groups() const { return queries_->weight.box.shape[0]; }

 private:
  std::unique_ptr<LinearSlice> make_slice(const std::string& name, i64 groups, i64 first_row, i64 rows) const;

  const ModelContext& context_;
  TensorParallelRegion region_;
  Fp8Scaling fp8_;
  std::unique_ptr<LinearSlice> queries_;      // or all three
  std::unique_ptr<LinearSlice> keys_values_;  // null unless ranks share groups
};

}  // namespace mcpp
