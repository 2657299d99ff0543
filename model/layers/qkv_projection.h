// The projection to queries, keys and values, split by query groups over the tensor-parallel group.
#pragma once
#include <memory>
#include <string>

#include "base/kept_ref.h"
#include "model/config/context.h"
#include "parallel/tp/linear.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// This rank's queries, keys and values of one microbatch: `queries` is Megatron's fused tensor
/// [s, b, groups / tp, q + 2, head_dim]; or, where several ranks share a group, it is [s, b, heads / tp, head_dim] and
/// `keys_values` is [s, b, 2, head_dim].
struct Qkv {
  Tensor queries, keys_values;

  bool is_fused() const { return !keys_values.defined(); }
  QkvHeads heads() const;
  /// Uninitialised, of the same shapes.
  Qkv like() const;
};

/// x [s, b, h] (sequence parallel: [s / tp, b, h]) -> Qkv. The weight is the box
/// [groups, (q + 2) * head_dim, h] with all of some groups; with fewer groups than ranks, two boxes of it: the rows of
/// this rank's query heads, and the key and value rows of their group, which are also held by the other ranks that
/// share it. Each of these has the part of the keys' and values' gradient that comes from its own queries.
class QkvProjection {
 public:
  QkvProjection(const std::string& name, KeptRef<ModelContext> context);

  Qkv forward(const Tensor& x, Pass& pass);
  /// Returns dx.
  Tensor backward(const Qkv& gradient, Pass& pass);
  /// As Module::gives().
  ActivationPlacement gives(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);
  bool shares_groups() const { return keys_values_ != nullptr; }

 private:
  std::unique_ptr<LinearSlice> make_slice(const std::string& name, i64 groups, i64 first_row, i64 rows) const;

  const ModelContext& context_;
  TensorParallelRegion region_;
  std::unique_ptr<LinearSlice> queries_;      // or all three
  std::unique_ptr<LinearSlice> keys_values_;  // null unless ranks share groups
};

}  // namespace mcpp
