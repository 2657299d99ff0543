// Update rules, which compute a weight from its gradient. A rule names its states per weight and updates a part of the
// flat vectors. It does not depend on parameters, ranks or the location of the states.
#pragma once
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "nn/offload/stored_array.h"
#include "optimizer/config.h"

namespace mcpp {

class ParamAndGradBuffer;

/// Elements with the same update settings; all tensors have one axis of the same length.
struct UpdatePart {
  Tensor weights;              ///< master weights: fp32 (fp64 in an fp64 model)
  std::vector<Tensor> states;  ///< states in the same dtype, in the order of UpdateRule::states()
  Tensor grads;                ///< gradients in the same dtype
  Tensor model;                ///< receives the new weights rounded to its dtype; undefined if identical to `weights`
  Tensor ema = {};             ///< averaged weights (optimizer/weight_average.h); undefined if not kept
  const ParamAndGradBuffer* buffer = nullptr;  ///< buffer of the elements
  i64 begin = 0;                               ///< first element in the flat vectors of the buffer
};

/// Settings of one update.
struct UpdateStep {
  double lr = 0;
  double weight_decay = 0;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  i64 step = 1;   ///< 1 for the first update
  Tensor factor;  ///< fp64 [1], multiplies the gradient; if it is not finite nothing is changed
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  /// Returns the names of the states per weight, as used in checkpoints (PyTorch's). States are initialized to zero.
  virtual std::span<const std::string_view> states() const = 0;
  /// Returns the storage form of each state between updates.
  virtual std::vector<StorageForm> forms() const = 0;
  virtual void update(UpdatePart& part, const UpdateStep& step) const = 0;

  /// Rules whose update of a weight depends on the entire matrix work in three steps. prepare() replaces the gradient
  /// of each part by the elements of the matrix to transform. transform() overwrites each matrix [out, in], in the
  /// dtype of gradients, on one of the ranks that hold parts of it. update() receives the result in place of the
  /// gradient.
  virtual bool needs_matrices() const { return false; }
  virtual void prepare(UpdatePart&, const UpdateStep&) const {}
  virtual void transform(Tensor& /*matrix*/) const {}
};

/// Forms of first moments and momentum, and of second moments, which are never negative.
StorageForm first_moment_form(const OptimizerConfig& config);
StorageForm second_moment_form(const OptimizerConfig& config);

/// Returns the rule of this kind with its settings, for a model of type `dtype`.
std::unique_ptr<UpdateRule> make_update_rule(OptimizerKind kind, const OptimizerConfig& config, DType dtype);

}  // namespace mcpp
