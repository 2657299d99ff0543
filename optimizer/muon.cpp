#include "optimizer/muon.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

/// Returns the factor of an update of a matrix [out, in] whose singular values are 1.
double update_scale(MuonScaleMode mode, double out, double in) {
  switch (mode) {
    case MuonScaleMode::Spectral:
      return std::sqrt(std::max(out, in));
    case MuonScaleMode::UnitRmsNorm:
      return std::sqrt(out / in);
    case MuonScaleMode::ShapeScaling:
      return std::sqrt(std::max(1.0, out / in));
  }
  fail(ExitCode::Internal, "unknown scale mode of Muon");
}

class MuonRule final : public UpdateRule {
 public:
  MuonRule(const OptimizerConfig& config, DType type) : config_(config), type_(type) {}

  std::span<const std::string_view> states() const override {
    static constexpr std::array<std::string_view, 1> kNames{"momentum_buffer"};
    return kNames;
  }
  std::vector<StorageForm> forms() const override { return {first_moment_form(config_)}; }
  bool needs_matrices() const override { return true; }
  void prepare(UpdatePart& part, const UpdateStep& step) const override {
    ops::momentum(part.states[0], part.grads,
                  {.momentum = config_.muon_momentum, .nesterov = config_.muon_nesterov, .factor = step.factor});
  }
  void transform(Tensor& matrix) const override {
    orthogonalize(matrix, config_.muon_num_ns_steps, type_);
    const auto out = static_cast<double>(matrix.dim(0)), in = static_cast<double>(matrix.dim(1));
    ops::scale(matrix, config_.muon_extra_scale_factor * update_scale(config_.muon_scale_mode, out, in));
  }
  void update(UpdatePart& part, const UpdateStep& step) const override {
    ops::apply_update(part.weights, part.grads,
                      {.lr = step.lr, .weight_decay = step.weight_decay, .factor = step.factor},
                      part.model.defined() ? &part.model : nullptr);
  }

 private:
  OptimizerConfig config_;
  DType type_;
};

Tensor workspace(const Shape& shape, DType type, Device& device) {
  return Tensor::empty(shape, type, device, MemoryClass::Workspace);
}

}  // namespace

std::unique_ptr<UpdateRule> make_muon_rule(const OptimizerConfig& config, DType dtype) {
  return std::make_unique<MuonRule>(config, is_low_precision(dtype) ? DType::BF16 : dtype);
}

void orthogonalize(Tensor& matrix, i64 steps, DType type) {
  // p(x) = a x + b x^3 + c x^5 of every singular value x; steep at 0.
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  constexpr double kEps = 1e-7;  // for a matrix of zeros
  Device& device = matrix.device();
  Tensor squares = Tensor::zeros({1}, DType::F64, device, MemoryClass::Workspace);
  ops::add_sum_of_squares(matrix, squares);
  ops::normalize(matrix, squares, kEps);

  const bool is_tall = matrix.dim(0) > matrix.dim(1);  // then X^T X is smaller than X X^T
  const i64 n = std::min(matrix.dim(0), matrix.dim(1));
  // Factors are rounded to `type`, sums are not.
  Tensor x = workspace(matrix.shape(), type, device), factor = workspace({n, n}, type, device);
  Tensor polynomial = workspace({n, n}, matrix.dtype(), device);
  for (i64 step = 0; step < steps; ++step) {
    // A = X X^T; polynomial = b A + c A^2; X = a X + polynomial X
    ops::copy(matrix, x);
    ops::matmul(x, x, polynomial, {.transpose_a = is_tall, .transpose_b = !is_tall});
    ops::copy(polynomial, factor);
    ops::scale(polynomial, b / c);
    ops::matmul(factor, factor, polynomial, {.beta = 1});
    ops::scale(polynomial, c);
    ops::copy(polynomial, factor);
    ops::scale(matrix, a);
    ops::matmul(is_tall ? x : factor, is_tall ? factor : x, matrix, {.beta = 1});
  }
}

}  // namespace mcpp
