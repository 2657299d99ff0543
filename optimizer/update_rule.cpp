#include "optimizer/update_rule.h"

#include <array>

#include "base/check.h"
#include "optimizer/muon.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

Tensor* model_of(UpdatePart& part) {
  return part.model.defined() ? &part.model : nullptr;
}

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const OptimizerConfig& config) : config_(config) {}

  std::span<const std::string_view> states() const override {
    static constexpr std::array<std::string_view, 2> kNames{"exp_avg", "exp_avg_sq"};
    return kNames;
  }
  void update(UpdatePart& part, const UpdateStep& step) const override {
    const AdamWStep how{.lr = step.lr,
                        .beta1 = config_.adam_beta1,
                        .beta2 = config_.adam_beta2,
                        .eps = config_.adam_eps,
                        .weight_decay = step.weight_decay,
                        .step = step.step,
                        .factor = step.factor};
    ops::adamw(part.weights, part.states[0], part.states[1], part.grads, how, model_of(part));
  }

 private:
  OptimizerConfig config_;
};

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(const OptimizerConfig& config) : momentum_(config.sgd_momentum) {}

  std::span<const std::string_view> states() const override {
    static constexpr std::array<std::string_view, 1> kNames{"momentum_buffer"};
    return kNames;
  }
  void update(UpdatePart& part, const UpdateStep& step) const override {
    const SgdStep how{.lr = step.lr, .momentum = momentum_, .weight_decay = step.weight_decay, .factor = step.factor};
    ops::sgd(part.weights, part.states[0], part.grads, how, model_of(part));
  }

 private:
  double momentum_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_update_rule(OptimizerKind kind, const OptimizerConfig& config, DType dtype) {
  switch (kind) {
    case OptimizerKind::Adam:
      return std::make_unique<AdamWRule>(config);
    case OptimizerKind::Sgd:
      return std::make_unique<SgdRule>(config);
    case OptimizerKind::Muon:
      return make_muon_rule(config, dtype);
  }
  fail(ExitCode::Internal, "unknown optimizer");
}

}  // namespace mcpp
