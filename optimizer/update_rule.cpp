#include "optimizer/update_rule.h"

#include <array>

#include "base/check.h"
#include "optimizer/muon.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

Tensor* model_or_null(UpdatePart& part) {
  return part.model.defined() ? &part.model : nullptr;
}

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const OptimizerConfig& config) : forms_{first_moment_form(config), second_moment_form(config)} {}

  std::span<const std::string_view> states() const override {
    static constexpr std::array<std::string_view, 2> kNames{"exp_avg", "exp_avg_sq"};
    return kNames;
  }
  std::vector<StorageForm> forms() const override { return forms_; }
  void update(UpdatePart& part, const UpdateStep& step) const override {
    const AdamWStep settings{.lr = step.lr,
                             .beta1 = step.adam_beta1,
                             .beta2 = step.adam_beta2,
                             .eps = step.adam_eps,
                             .weight_decay = step.weight_decay,
                             .step = step.step,
                             .factor = step.factor};
    ops::adamw(part.weights, part.states[0], part.states[1], part.grads, settings, model_or_null(part));
  }

 private:
  std::vector<StorageForm> forms_;
};

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(const OptimizerConfig& config) : momentum_(config.sgd_momentum), form_(first_moment_form(config)) {}

  std::span<const std::string_view> states() const override {
    static constexpr std::array<std::string_view, 1> kNames{"momentum_buffer"};
    return kNames;
  }
  std::vector<StorageForm> forms() const override { return {form_}; }
  void update(UpdatePart& part, const UpdateStep& step) const override {
    const SgdStep settings{
        .lr = step.lr, .momentum = momentum_, .weight_decay = step.weight_decay, .factor = step.factor};
    ops::sgd(part.weights, part.states[0], part.grads, settings, model_or_null(part));
  }

 private:
  double momentum_;
  StorageForm form_;
};

/// Forms of a moment by the format of a byte.
struct ByteForms {
  StorageForm dynamic, e4m3, e5m2;
};

StorageForm form_of(StateDType type, const ByteForms& bytes) {
  switch (type) {
    case StateDType::Fp32:
      return StorageForm::Plain;
    case StateDType::Bf16:
      return StorageForm::Bf16;
    case StateDType::Uint8:
      return bytes.dynamic;
    case StateDType::Fp8E4m3:
      return bytes.e4m3;
    case StateDType::Fp8E5m2:
      return bytes.e5m2;
  }
  fail(ExitCode::Internal, "unknown type of a moment");
}

}  // namespace

StorageForm first_moment_form(const OptimizerConfig& config) {
  return form_of(config.exp_avg_dtype, {StorageForm::Signed, StorageForm::E4m3, StorageForm::E5m2});
}

StorageForm second_moment_form(const OptimizerConfig& config) {
  return form_of(config.exp_avg_sq_dtype,
                 {StorageForm::NonNegative, StorageForm::PositiveE4m3, StorageForm::PositiveE5m2});
}

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
