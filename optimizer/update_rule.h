// How a weight follows from its gradient. A rule names the states that it keeps of each weight and updates a part of
// the flat vectors; it knows nothing of parameters, ranks, or where its states are kept.
#pragma once
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "optimizer/config.h"
#include "optimizer/states/state_codec.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Elements that are updated alike; all tensors have one axis of the same length.
struct UpdatePart {
  Tensor weights;              ///< master weights: fp32 (fp64 in an fp64 model)
  std::vector<Tensor> states;  ///< of the same type, in the order of UpdateRule::states()
  Tensor grads;                ///< of the same type
  Tensor model;                ///< receives the new weights rounded to its type; undefined where they are `weights`
};

/// One update.
struct UpdateStep {
  double lr = 0;
  double weight_decay = 0;
  i64 step = 1;   ///< 1 for the first update
  Tensor factor;  ///< fp64 [1], multiplies the gradient; nothing is changed when it is not finite
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  /// Names of the numbers kept per weight, by which checkpoints know them: PyTorch's. They begin as zeros.
  virtual std::span<const std::string_view> states() const = 0;
  /// In which form each of them is kept between updates.
  virtual std::vector<StateForm> forms() const = 0;
  virtual void update(UpdatePart& part, const UpdateStep& step) const = 0;

  /// A rule whose update of one weight depends on the whole matrix that it is in takes part in three ways: each part's
  /// prepare() leaves in the place of the gradient what the matrix is to be made of; transform() gets each matrix
  /// [out, in], in the type of gradients, and overwrites it, on one of the ranks that hold parts of it; update() finds
  /// its part of the result in the place of the gradient.
  virtual bool needs_matrices() const { return false; }
  virtual void prepare(UpdatePart&, const UpdateStep&) const {}
  virtual void transform(Tensor& /*matrix*/) const {}
};

/// First moments and momentum; second moments, which are never negative.
StateForm first_moment_form(const OptimizerConfig& config);
StateForm second_moment_form(const OptimizerConfig& config);

/// The rule of that name, with its settings, for a model of type `dtype`.
std::unique_ptr<UpdateRule> make_update_rule(OptimizerKind kind, const OptimizerConfig& config, DType dtype);

}  // namespace mcpp
