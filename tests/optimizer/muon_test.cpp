#include "optimizer/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <map>

#include "base/file.h"
#include "base/strings.h"
#include "optimizer/optimizer.h"
#include "parallel/dp/zero.h"
#include "tests/support/boxes.h"
#include "tests/support/build.h"

namespace mcpp::muon_test {
namespace {

using test::Numbers;
using test::relative_distance;
using test::set_values;
using test::to_doubles;

/// Matrix [rows, columns] in double precision.
struct Matrix {
  i64 rows, columns;
  Numbers values;

  double& at(i64 i, i64 j) { return values[static_cast<std::size_t>(i * columns + j)]; }
  double at(i64 i, i64 j) const { return values[static_cast<std::size_t>(i * columns + j)]; }
};

Matrix transposed(const Matrix& x) {
  Matrix y{x.columns, x.rows, Numbers(x.values.size())};
  for (i64 i = 0; i < x.rows; ++i) {
    for (i64 j = 0; j < x.columns; ++j) y.at(j, i) = x.at(i, j);
  }
  return y;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c{a.rows, b.columns, Numbers(static_cast<std::size_t>(a.rows * b.columns))};
  for (i64 i = 0; i < a.rows; ++i) {
    for (i64 k = 0; k < a.columns; ++k) {
      for (i64 j = 0; j < b.columns; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

/// Returns the Newton-Schulz iteration as published by Jordan: X = a X + (b A + c A A) X with A = X X^T, from X / |X|;
/// a tall matrix is transposed. X, A and the polynomial are rounded to `type`.
Matrix orthogonalized(Matrix x, i64 steps, DType type = DType::F64) {
  if (x.rows > x.columns) return transposed(orthogonalized(transposed(x), steps, type));
  const auto round = [&](Matrix& m) {
    for (double& v : m.values) v = test::rounded(v, type);
  };
  double squares = 0;
  for (const double v : x.values) squares += v * v;
  for (double& v : x.values) v /= std::sqrt(squares) + 1e-7;
  round(x);
  for (i64 step = 0; step < steps; ++step) {
    Matrix a = product(x, transposed(x));
    round(a);
    const Matrix aa = product(a, a);
    Matrix b = a;
    for (std::size_t i = 0; i < b.values.size(); ++i) b.values[i] = -4.7750 * a.values[i] + 2.0315 * aa.values[i];
    round(b);
    const Matrix bx = product(b, x);
    for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] = 3.4445 * x.values[i] + bx.values[i];
    round(x);
  }
  return x;
}

double frobenius(const Numbers& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

const std::pair<i64, i64> kShapes[]{{7, 7}, {5, 19}, {33, 8}, {1, 6}, {64, 48}};

Matrix random_matrix(i64 rows, i64 columns, u64 seed) {
  return {rows, columns, test::normals(rows * columns, seed, DType::F32, 40)};
}

/// Returns the distance of orthogonalize() with GEMMs of `gemm_type` from the iteration in double precision.
double error_of(const Matrix& x, DType type, DType gemm_type, CpuDevice& device) {
  Tensor y = test::tensor_of(x.values, {x.rows, x.columns}, type, device);
  orthogonalize(y, MuonCoefficientType::Simple, 5, gemm_type);
  return relative_distance(to_doubles(y), orthogonalized(x, 5).values);
}

TEST(MuonTest, OrthogonalizeMatchesDoublePrecisionIteration) {
  CpuDevice device;
  for (const auto& [rows, columns] : kShapes) {
    SCOPED_TRACE(str(rows, " x ", columns));
    const Matrix x = random_matrix(rows, columns, 3);
    EXPECT_LE(error_of(x, DType::F64, DType::F64, device), 1e-11);
    EXPECT_LE(error_of(x, DType::F32, DType::F32, device), 1e-5);
  }
}

/// The limit is twice the error of bf16 in the same iteration if each matrix is rounded once, averaged over many
/// matrices because single matrices vary.
TEST(MuonTest, OrthogonalizeInBf16LosesNoMoreThanRounding) {
  CpuDevice device;
  constexpr u64 kMatrices = 16;
  for (const auto& [rows, columns] : kShapes) {
    double ours = 0, reference = 0;
    for (u64 seed = 0; seed < kMatrices; ++seed) {
      const Matrix x = random_matrix(rows, columns, seed);
      ours += error_of(x, DType::F32, DType::BF16, device);
      reference += relative_distance(orthogonalized(x, 5, DType::BF16).values, orthogonalized(x, 5).values);
    }
    EXPECT_LE(ours, 2 * reference) << rows << " x " << columns << ", sums over " << kMatrices;
  }
}

/// The purpose of the algorithm is singular values near 1, measured by X X^T close to the identity.
TEST(MuonTest, OrthogonalizeMakesSingularValuesAboutOne) {
  CpuDevice device;
  constexpr i64 kRows = 16, kColumns = 40;
  Tensor x = test::random_tensor({kRows, kColumns}, DType::F32, device, 9, 1e-3);
  orthogonalize(x, MuonCoefficientType::Simple, 5, DType::F32);
  const Matrix y{kRows, kColumns, to_doubles(x)};
  const Matrix gram = product(y, transposed(y));
  double trace = 0;
  for (i64 i = 0; i < kRows; ++i) {
    trace += gram.at(i, i);
    EXPECT_NEAR(gram.at(i, i), 0.85, 0.4);
  }
  EXPECT_NEAR(frobenius(gram.values) / (trace / std::sqrt(kRows)), 1, 0.1) << "singular values are not alike";
}

TEST(MuonTest, OrthogonalizeKeepsZeroMatrix) {
  CpuDevice device;
  for (std::size_t type = 0; type < EnumNames<MuonCoefficientType>::value.size(); ++type) {
    Tensor x = Tensor::zeros({3, 4}, DType::F32, device);
    orthogonalize(x, static_cast<MuonCoefficientType>(type), 10, DType::F32);
    EXPECT_EQ(frobenius(to_doubles(x)), 0);
  }
}

/// Returns the lines of a file in tests/golden/muon without their header, split at commas.
std::vector<std::vector<std::string>> golden_lines(const char* name) {
  std::vector<std::vector<std::string>> lines;
  for (const std::string& line : split(read_text_file(test::source_folder() / "tests/golden/muon" / name), '\n'))
    if (!line.empty()) lines.push_back(split(line, ','));
  lines.erase(lines.begin());
  return lines;
}

Numbers numbers_of(const std::string& text) {
  Numbers values;
  for (const std::string& number : split(text, ' ')) values.push_back(std::stod(number));
  return values;
}

/// Emerging-Optimizers iterates in fp32, with one iteration and with as many as reach the end of each list.
TEST(MuonTest, EveryCoefficientTypeMatchesEmergingOptimizers) {
  CpuDevice device;
  std::map<std::string, int> cases;
  for (const std::vector<std::string>& line : golden_lines("orthogonalized.csv")) {
    const auto names = EnumNames<MuonCoefficientType>::value;
    const auto type = static_cast<MuonCoefficientType>(std::ranges::find(names, line[0]) - names.begin());
    const i64 iterations = std::stoll(line[1]), rows = std::stoll(line[2]), columns = std::stoll(line[3]);
    Tensor x = test::tensor_of(numbers_of(line[4]), {rows, columns}, DType::F64, device);
    orthogonalize(x, type, iterations, DType::F64);
    EXPECT_LE(relative_distance(to_doubles(x), numbers_of(line[5])), 2e-5)
        << line[0] << " " << iterations << " " << rows;
    ++cases[line[0]];
  }
  EXPECT_EQ(cases.size(), EnumNames<MuonCoefficientType>::value.size());
}

/// The reason for other coefficients: singular values closer to 1, measured by the distance of X X^T from the identity.
TEST(MuonTest, ConvergingCoefficientsReachOrthogonalMatrix) {
  CpuDevice device;
  constexpr i64 kRows = 16, kColumns = 40;
  const auto deviation = [&](MuonCoefficientType type, i64 iterations) {
    Tensor x = test::tensor_of(random_matrix(kRows, kColumns, 9).values, {kRows, kColumns}, DType::F64, device);
    orthogonalize(x, type, iterations, DType::F64);
    Matrix gram = product({kRows, kColumns, to_doubles(x)}, transposed({kRows, kColumns, to_doubles(x)}));
    for (i64 i = 0; i < kRows; ++i) gram.at(i, i) -= 1;
    return frobenius(gram.values) / std::sqrt(kRows);
  };
  EXPECT_GT(deviation(MuonCoefficientType::Simple, 5), 0.1);
  EXPECT_LT(deviation(MuonCoefficientType::PolarExpress, 8), 0.01);
  EXPECT_LT(deviation(MuonCoefficientType::DeepseekV4, kDeepseekSteps), 0.01);
}

/// Returns the parameter of a fused weight [groups, (2 + 2) heads, hidden] with heads of 3 rows.
Param fused_qkv() {
  const Shape shape{2, 12, 5};
  Param param("linear_qkv.weight", shape, Init::Normal);
  param.matrices = {slab(shape, 1, 0, 6), slab(shape, 1, 6, 3), slab(shape, 1, 9, 3)};
  param.head_rows = 3;
  return param;
}

TEST(MuonTest, SplitsFusedWeightsAsConfigured) {
  const auto shapes = [](const Param& param, const OptimizerConfig& config) {
    std::vector<std::pair<Shape, Shape>> list;
    for (const Box& box : muon_matrices(param, config)) list.emplace_back(box.offset, box.shape);
    return list;
  };
  using Boxes = std::vector<std::pair<Shape, Shape>>;
  OptimizerConfig config;
  config.optimizer = OptimizerKind::Muon;
  const Param qkv = fused_qkv();
  EXPECT_EQ(shapes(qkv, config), (Boxes{{{0, 0, 0}, {2, 6, 5}}, {{0, 6, 0}, {2, 3, 5}}, {{0, 9, 0}, {2, 3, 5}}}));
  config.muon_split_heads = true;
  EXPECT_EQ(shapes(qkv, config), (Boxes{{{0, 0, 0}, {1, 3, 5}},
                                        {{0, 3, 0}, {1, 3, 5}},
                                        {{1, 0, 0}, {1, 3, 5}},
                                        {{1, 3, 0}, {1, 3, 5}},
                                        {{0, 6, 0}, {1, 3, 5}},
                                        {{1, 6, 0}, {1, 3, 5}},
                                        {{0, 9, 0}, {1, 3, 5}},
                                        {{1, 9, 0}, {1, 3, 5}}}));
  config.muon_split_heads = config.muon_split_qkv = false;
  EXPECT_EQ(shapes(qkv, config), (Boxes{{{0, 0, 0}, {2, 12, 5}}}));
  // Latent attention: keys of 2 rows and values of 4 per head.
  const Shape shape{3, 6, 5};
  Param latent("linear_kv_up_proj.weight", shape, Init::Normal);
  latent.matrices = {slab(shape, 1, 0, 2), slab(shape, 1, 2, 4)};
  latent.head_rows = 4;
  config.muon_split_heads = config.muon_split_qkv = true;
  EXPECT_EQ(shapes(latent, config), (Boxes{{{0, 0, 0}, {1, 2, 5}},
                                           {{1, 0, 0}, {1, 2, 5}},
                                           {{2, 0, 0}, {1, 2, 5}},
                                           {{0, 2, 0}, {1, 4, 5}},
                                           {{1, 2, 0}, {1, 4, 5}},
                                           {{2, 2, 0}, {1, 4, 5}}}));
  // Weights without heads are not affected, nor those that Muon does not update.
  Param up("linear_fc1.weight", {2, 6, 5}, Init::Normal);
  up.matrices = {slab(up.box.global, 0, 0, 1), slab(up.box.global, 0, 1, 1)};
  config.muon_split_heads = config.muon_split_qkv = false;
  EXPECT_EQ(shapes(up, config), (Boxes{{{0, 0, 0}, {1, 6, 5}}, {{1, 0, 0}, {1, 6, 5}}}));
  EXPECT_EQ(shapes(Param("embedding.weight", {9, 5}, Init::Normal), config), Boxes{});
}

/// Two linear layers, one with two fused maps [2, 6, 5], with a bias, an embedding, and Muon.
struct MuonModel {
  MuonModel(DType dtype, const OptimizerConfig& config) {
    const auto add = [&](const std::string& name, const Shape& shape) -> Param& {
      Param& param = params.emplace_back(name, shape, Init::Normal);
      list.push_back({&param, 0});
      return param;
    };
    add("embedding.weight", {9, 5});
    add("fc1.weight", {2, 6, 5}).matrices = {slab({2, 6, 5}, 0, 0, 1), slab({2, 6, 5}, 0, 1, 1)};
    add("fc1.bias", {2, 6});
    add("fc2.weight", {4, 12}).matrices = {slab({4, 12}, 0, 0, 4)};
    memory = make_param_and_grad_buffer(list, dtype, device, {*self, *self}, {.bucket_size = 0});
    u64 seed = 0;
    for (Param& param : params) set_values(param.value, test::normals(param.numel(), ++seed));
    ParamAndGradBuffer* const buffers[]{memory.get()};
    optimizer = std::make_unique<Optimizer>(buffers, config);
  }

  void make_grads(u64 seed) {
    memory->clear_grads();
    for (Param& param : params) {
      param.add_grad(
          [&](Tensor& sum, float) { set_values(sum, test::normals(param.numel(), ++seed * 100, DType::F32)); });
    }
    memory->finish();
  }

  CpuDevice device;
  std::unique_ptr<Communicator> self = make_self_communicator();
  std::list<Param> params;
  std::vector<UnitParam> list;
  std::unique_ptr<ParamAndGradBuffer> memory;
  std::unique_ptr<Optimizer> optimizer;
};

struct Step {
  double lr = 0.02, weight_decay = 0.1, clip = 1;
};

/// Performs one update in double precision of the matrices in `weight`, which are stored consecutively.
void reference_update(Numbers& weight, Numbers& momentum, const Numbers& grad, i64 rows, i64 columns, const Step& step,
                      const OptimizerConfig& config) {
  const auto count = static_cast<std::size_t>(rows * columns);
  for (std::size_t begin = 0; begin < weight.size(); begin += count) {
    Matrix direction{rows, columns, {}};
    for (std::size_t i = begin; i < begin + count; ++i) {
      const double g = step.clip * grad[i];
      momentum[i] = config.muon_momentum * momentum[i] + g;
      direction.values.push_back(config.muon_nesterov ? g + config.muon_momentum * momentum[i] : momentum[i]);
    }
    const Matrix update = orthogonalized(direction, config.muon_num_ns_steps);
    const auto out = static_cast<double>(rows), in = static_cast<double>(columns);
    const double size = config.muon_scale_mode == MuonScaleMode::Spectral      ? std::sqrt(std::max(out, in))
                        : config.muon_scale_mode == MuonScaleMode::UnitRmsNorm ? std::sqrt(out / in)
                                                                               : std::sqrt(std::max(1.0, out / in));
    for (std::size_t i = 0; i < count; ++i) {
      double& w = weight[begin + i];
      w -= step.lr * (config.muon_extra_scale_factor * size * update.values[i] + step.weight_decay * w);
    }
  }
}

struct Case {
  DType dtype;
  bool nesterov;
  MuonScaleMode mode;
  double tolerance;
};

class MuonStepsTest : public testing::TestWithParam<Case> {};

/// Runs three steps, the second with clipping. Parameters that are not matrices are updated as by AdamW.
TEST_P(MuonStepsTest, MatchesFormulaInDoublePrecision) {
  OptimizerConfig config;
  config.optimizer = OptimizerKind::Muon;
  config.clip_grad = 0;
  config.muon_nesterov = GetParam().nesterov;
  config.muon_scale_mode = GetParam().mode;
  OptimizerConfig adam = config;
  adam.optimizer = OptimizerKind::Adam;
  MuonModel model(GetParam().dtype, config), with_adam(GetParam().dtype, adam);

  std::map<std::string, Numbers> weights, momenta;
  for (const Param& param : model.params) {
    weights[param.name] = to_doubles(param.value);
    momenta[param.name].resize(static_cast<std::size_t>(param.numel()));
  }
  for (u64 i = 1; i <= 3; ++i) {
    const Step step{.clip = i == 2 ? 0.01 : 1};
    for (MuonModel* m : {&model, &with_adam}) m->make_grads(i);
    for (const Param& param : model.params) {
      if (param.matrices.empty()) continue;
      const Shape& shape = param.box.shape;
      reference_update(weights[param.name], momenta[param.name], to_doubles(param.main_grad), shape[shape.size() - 2],
                       shape.back(), step, config);
    }
    for (MuonModel* m : {&model, &with_adam})
      EXPECT_FALSE(m->optimizer->step(step.lr, step.weight_decay, step.clip).is_skipped);
    for (const Param& param : model.params) {
      if (param.matrices.empty()) continue;
      EXPECT_LE(relative_distance(to_doubles(param.value), weights[param.name]), GetParam().tolerance)
          << param.name << " " << i;
    }
  }
  for (auto a = model.params.begin(), b = with_adam.params.begin(); a != model.params.end(); ++a, ++b) {
    if (!a->matrices.empty()) continue;
    EXPECT_EQ(to_doubles(a->value), to_doubles(b->value)) << a->name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, MuonStepsTest,
                         testing::Values(Case{DType::F64, true, MuonScaleMode::Spectral, 1e-12},
                                         Case{DType::F64, false, MuonScaleMode::UnitRmsNorm, 1e-12},
                                         Case{DType::F64, true, MuonScaleMode::ShapeScaling, 1e-12},
                                         Case{DType::F32, true, MuonScaleMode::Spectral, 1e-6},
                                         // Half of the last bit of a weight, 1/256 of it, uniformly distributed.
                                         Case{DType::BF16, true, MuonScaleMode::Spectral, 4e-3}));

TEST(MuonTest, RejectsSettingsThatConflict) {
  OptimizerConfig config;
  config.optimizer = OptimizerKind::Muon;
  config.muon_split_heads = true;
  EXPECT_TRUE(config.conflicts().empty());
  config.muon_split_qkv = false;
  EXPECT_EQ(config.conflicts(),
            std::vector<std::string>{"optimizer.muon_split_heads: needs muon_split_qkv, since heads "
                                     "are parts of q, k and v"});
  config.muon_split_heads = false;
  config.muon_coefficient_type = MuonCoefficientType::DeepseekV4;
  EXPECT_EQ(config.conflicts(),
            std::vector<std::string>{"optimizer.muon_num_ns_steps: \"deepseekv4\" has 10 iterations, "
                                     "of which the last two converge; set at least 10, not 5"});
  config.muon_num_ns_steps = 10;
  EXPECT_TRUE(config.conflicts().empty());
}

/// PyTorch averages momentum, which changes only the size of the matrix that is orthogonalized, and divides it by the
/// maximum of its norm, about 0.1 to 1, and 1e-7 instead of their sum.
TEST(MuonTest, MatchesMuonOfPyTorch) {
  const std::map<std::string, MuonScaleMode> modes{{"match_rms_adamw", MuonScaleMode::Spectral},
                                                   {"original", MuonScaleMode::ShapeScaling},
                                                   {"spectral_unclamped", MuonScaleMode::UnitRmsNorm}};
  CpuDevice device;
  const auto self = make_self_communicator();
  std::unique_ptr<ParamAndGradBuffer> buffer;
  std::unique_ptr<Optimizer> optimizer;
  Param param("linear.weight", {3, 4}, Init::Normal);
  param.matrices = {param.box};
  const std::vector<UnitParam> list{{&param, 0}};
  int steps = 0;
  for (const std::vector<std::string>& line : golden_lines("steps.csv")) {
    const Numbers gradient = numbers_of(line[3]), weights = numbers_of(line[4]);
    if (line[2] == "0") {
      OptimizerConfig config;
      config.optimizer = OptimizerKind::Muon;
      config.clip_grad = 0;
      config.muon_scale_mode = modes.at(line[0]);
      config.muon_extra_scale_factor = config.muon_scale_mode == MuonScaleMode::Spectral ? 0.2 : 1;
      config.muon_nesterov = line[1] == "1";
      optimizer.reset();
      buffer = make_param_and_grad_buffer(list, DType::F64, device, {*self, *self}, {.bucket_size = 0});
      set_values(param.value, weights);
      ParamAndGradBuffer* const buffers[]{buffer.get()};
      optimizer = std::make_unique<Optimizer>(buffers, config);
      continue;
    }
    buffer->clear_grads();
    param.add_grad([&](Tensor& sum, float) { set_values(sum, gradient); });
    buffer->finish();
    optimizer->step(0.02, 0.1);
    EXPECT_LE(relative_distance(to_doubles(param.value), weights), 1e-8) << line[0] << " " << line[2];
    ++steps;
  }
  EXPECT_EQ(steps, 12);
}

TEST(MuonTest, KeepsOneStatePerMatrixAndTwoPerOtherParameter) {
  OptimizerConfig config;
  config.optimizer = OptimizerKind::Muon;
  MuonModel model(DType::BF16, config);
  std::map<std::string, std::string> states;
  i64 elements = 0;
  model.optimizer->visit_stored_state([&](std::string_view state, Param& param, i64 first, const StoredArray& values) {
    EXPECT_EQ(first, 0);
    EXPECT_EQ(values.numel(), param.numel());
    states[param.name] += str(state, " ");
    elements += values.numel();
  });
  EXPECT_EQ(states.at("embedding.weight"), "master exp_avg exp_avg_sq ");
  EXPECT_EQ(states.at("fc1.weight"), "master momentum_buffer ");
  EXPECT_EQ(states.at("fc1.bias"), "master exp_avg exp_avg_sq ");
  EXPECT_EQ(states.at("fc2.weight"), "master momentum_buffer ");
  EXPECT_EQ(elements, 3 * (9 * 5 + 2 * 6) + 2 * (2 * 6 * 5 + 4 * 12));
}

TEST(MuonTest, ChangesNothingWhenGradientIsNotFinite) {
  OptimizerConfig config;
  config.optimizer = OptimizerKind::Muon;
  MuonModel model(DType::BF16, config);
  const auto everything = [&] {
    std::vector<std::vector<std::byte>> bytes{test::bytes_of(model.memory->shard()[0].params)};
    model.optimizer->visit_stored_state([&](std::string_view, Param&, i64, const StoredArray& values) {
      bytes.push_back(test::bytes_of(values.tensor()));
    });
    return bytes;
  };
  model.make_grads(1);
  EXPECT_FALSE(model.optimizer->step(0.02, 0.1).is_skipped);
  const auto before = everything();
  model.make_grads(2);
  model.params.back().main_grad.data<float>()[5] = std::nanf("");
  EXPECT_TRUE(model.optimizer->step(0.02, 0.1).is_skipped);
  EXPECT_EQ(everything(), before);
}

}  // namespace
}  // namespace mcpp::muon_test
