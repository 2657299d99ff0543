#include "optimizer/muon.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

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

/// Coefficients of one iteration, which maps each singular value x to a x + b x^3 + c x^5.
struct Coefficients {
  double a, b, c;
};

/// Coefficients of the first iterations. Later ones repeat the last, or all from the first.
struct CoefficientList {
  std::span<const Coefficients> first;
  bool repeats_last;
};

CoefficientList coefficient_list(MuonCoefficientType type) {
  static constexpr Coefficients kJordan{3.4445, -4.7750, 2.0315}, kConverging{2, -1.5, 0.5};
  static constexpr std::array kSimple{kJordan};
  // Cesista et al., "Squeezing 1-2% efficiency gains out of Muon", 2025; as in modded-nanogpt.
  static constexpr std::array<Coefficients, 5> kQuintic{{{4.0848, -6.8946, 2.9270},
                                                         {3.9505, -6.3029, 2.6377},
                                                         {3.7418, -5.5913, 2.3037},
                                                         {2.8769, -3.1427, 1.2046},
                                                         {2.8366, -3.0525, 1.2012}}};
  // Amsel et al., "The Polar Express", 2025, with its safety factor of 1.01.
  static constexpr std::array<Coefficients, 8> kPolarExpress{{{8.2051, -22.9019, 16.4607},
                                                              {4.0664, -2.8612, 0.5184},
                                                              {3.9096, -2.8234, 0.5250},
                                                              {3.2856, -2.4153, 0.4853},
                                                              {2.2779, -1.6198, 0.3985},
                                                              {1.8726, -1.2307, 0.3585},
                                                              {1.8564, -1.2132, 0.3568},
                                                              {1.8750, -1.2500, 0.3750}}};
  // Grishina et al., "Accelerating Newton-Schulz iteration for orthogonalization via Chebyshev-type polynomials", 2025.
  static constexpr std::array<Coefficients, 5> kCans{{{8.4703, -25.1081, 18.6293},
                                                      {4.1828, -3.1087, 0.5806},
                                                      {3.9619, -2.9541, 0.5630},
                                                      {3.2866, -2.4647, 0.5074},
                                                      {2.2737, -1.6447, 0.4162}}};
  // Boissin et al., "Turbo-Muon", 2025.
  static constexpr std::array<Coefficients, 4> kAol{
      {{4.0098, -7.0585, 2.4635}, {3.4585, -5.5479, 2.5959}, {2.7573, -3.2939, 1.4254}, {2.7215, -3.0494, 1.3169}}};
  // DeepSeek-V4, 2026: eight iterations that approach 1 fast, and two that converge to it.
  static constexpr std::array<Coefficients, kDeepseekSteps> kDeepseek{
      {kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, kJordan, kConverging, kConverging}};
  switch (type) {
    case MuonCoefficientType::Simple:
      return {kSimple, true};
    case MuonCoefficientType::Quintic:
      return {kQuintic, false};
    case MuonCoefficientType::PolarExpress:
      return {kPolarExpress, true};
    case MuonCoefficientType::Cans:
      return {kCans, true};
    case MuonCoefficientType::Aol:
      return {kAol, false};
    case MuonCoefficientType::DeepseekV4:
      return {kDeepseek, true};
  }
  fail(ExitCode::Internal, "unknown coefficients of Muon");
}

Coefficients coefficients_of(const CoefficientList& list, i64 step) {
  const auto count = static_cast<i64>(list.first.size());
  return list.first[static_cast<std::size_t>(list.repeats_last ? std::min(step, count - 1) : step % count)];
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
    orthogonalize(matrix, config_.muon_coefficient_type, config_.muon_num_ns_steps, type_);
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

std::vector<Box> muon_matrices(const Param& param, const OptimizerConfig& config) {
  if (param.matrices.empty() || param.head_rows == 0) return param.matrices;
  if (!config.muon_split_qkv) return {slab(param.box.global, 0, 0, param.box.global[0])};
  if (!config.muon_split_heads) return param.matrices;
  std::vector<Box> heads;
  for (const Box& matrix : param.matrices) {
    const i64 rows = std::min(param.head_rows, matrix.shape[1]);
    for (i64 group = 0; group < matrix.shape[0]; ++group) {
      for (i64 row = 0; row < matrix.shape[1]; row += rows) {
        Box& head = heads.emplace_back(matrix);
        head.offset[0] += group, head.offset[1] += row;
        head.shape[0] = 1, head.shape[1] = rows;
      }
    }
  }
  return heads;
}

void orthogonalize(Tensor& matrix, MuonCoefficientType coefficients, i64 steps, DType type) {
  const CoefficientList list = coefficient_list(coefficients);
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
    const auto [a, b, c] = coefficients_of(list, step);
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
