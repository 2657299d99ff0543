#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tensor/cpu/gemm.h"
#include "tensor/ops.h"

namespace mcpp {
namespace {

using kernel::Bf16Path;

struct Case {
  i64 m, n, k;
};

// Odd sizes, tails of every tile and block, long sums, single rows and columns, empty sums.
const std::vector<Case> kCases{
    {1, 1, 1},      {3, 5, 7},      {16, 16, 32},  {33, 31, 65}, {64, 64, 64},   {77, 130, 50},  {130, 77, 1111},
    {257, 129, 96}, {31, 1000, 33}, {1, 515, 129}, {3, 70, 200}, {1, 64, 1024},  {5, 1, 300},    {2, 3, 2500},
    {600, 400, 1},  {4, 6, 0},      {0, 4, 3},     {4, 0, 3},    {520, 390, 40}, {64, 96, 2080}, {1, 97, 64}};

// A matrix inside a larger buffer whose other numbers must not matter: NaN on both sides.
Tensor random_matrix(i64 rows, i64 columns, DType type, CpuDevice& device, unsigned seed) {
  Tensor whole = Tensor::empty({rows + 2, columns}, type, device);
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> uniform(-2, 2);
  on_float(type, [&]<class T>() {
    std::fill_n(whole.data<T>(), whole.numel(), from_double<T>(std::nan("")));
    for (i64 i = 0; i < rows * columns; ++i) whole.data<T>()[columns + i] = from_double<T>(uniform(random));
  });
  return whole.slice(1, rows + 1);
}

double number(const Tensor& x, i64 index) {
  return on_float(x.dtype(), [&]<class T>() { return to_double(x.data<T>()[index]); });
}

std::vector<double> numbers(const Tensor& x) {
  std::vector<double> all;
  for (i64 i = 0; i < x.numel(); ++i) all.push_back(number(x, i));
  return all;
}

// What the product must be, in fp64 from the rounded inputs, and the sum of magnitudes that bounds its rounding.
struct Truth {
  std::vector<double> value, magnitude;
};

Truth truth(const Tensor& a, const Tensor& b, const Tensor& c, const ops::MatmulOptions& o) {
  const i64 m = c.dim(0), n = c.dim(1), k = a.dim(o.transpose_a ? 0 : 1);
  const std::vector<double> x = numbers(a), y = numbers(b), z = numbers(c);
  Truth t;
  for (i64 i = 0; i < m; ++i) {
    for (i64 j = 0; j < n; ++j) {
      double sum = o.beta == 0 ? 0 : z[static_cast<std::size_t>(i * n + j)], magnitude = std::abs(sum);
      for (i64 l = 0; l < k; ++l) {
        const double product = x[static_cast<std::size_t>(o.transpose_a ? l * m + i : i * k + l)] *
                               y[static_cast<std::size_t>(o.transpose_b ? j * k + l : l * n + j)];
        sum += product;
        magnitude += std::abs(product);
      }
      t.value.push_back(sum);
      t.magnitude.push_back(magnitude);
    }
  }
  return t;
}

struct Types {
  DType in, out;
  Bf16Path path = Bf16Path::Widen;
};

// Errors of a sum of K rounded terms grow like sqrt(K) times the unit of its type, relative to the sum of magnitudes;
// 4 leaves room for unlucky signs. Rounding to bf16 once adds half a unit of the result; to fp16,
// at least half of its smallest number.
double tolerance(const Types& t, i64 k, double value, double magnitude) {
  const double unit = t.in == DType::F64 ? 1.2e-16 : 6e-8;
  const double sum = 4 * unit * std::sqrt(static_cast<double>(k + 1)) * magnitude;
  if (t.out == DType::F16) return sum + std::abs(value) / 2048 * 1.001 + 0x1p-25;
  return t.out == DType::BF16 ? sum + std::abs(value) / 256 * 1.001 + 1e-37 : sum;
}

std::string describe(const Types& t, const Case& x, const ops::MatmulOptions& o) {
  return str(name_of(t.in), " to ", name_of(t.out), " path ", static_cast<int>(t.path), " [", x.m, ", ", x.n, ", ", x.k,
             "]", o.transpose_a ? " a^T" : "", o.transpose_b ? " b^T" : "", " beta ", o.beta);
}

std::vector<std::byte> bytes_of(const Tensor& x) {
  const auto* data = static_cast<const std::byte*>(x.raw());
  return {data, data + x.bytes()};
}

std::vector<std::byte> product(int threads, const Types& t, const Case& x, const ops::MatmulOptions& o,
                               bool check_values) {
  CpuDevice device({.threads = threads});
  device.gemm_cache().bf16_path = t.path;
  const Tensor a = o.transpose_a ? random_matrix(x.k, x.m, t.in, device, 1) : random_matrix(x.m, x.k, t.in, device, 1);
  const Tensor b = o.transpose_b ? random_matrix(x.n, x.k, t.in, device, 2) : random_matrix(x.k, x.n, t.in, device, 2);
  Tensor c = random_matrix(x.m, x.n, t.out, device, 3);
  if (o.beta == 0) {
    on_float(t.out, [&]<class T>() { std::fill_n(c.data<T>(), c.numel(), from_double<T>(std::nan(""))); });
  }
  Truth wanted;
  if (check_values) wanted = truth(a, b, c, o);
  ops::matmul(a, b, c, o);
  for (std::size_t i = 0; i < wanted.value.size(); ++i) {
    const double got = number(c, static_cast<i64>(i)), value = wanted.value[i];
    EXPECT_LE(std::abs(got - value), tolerance(t, x.k, value, wanted.magnitude[i])) << describe(t, x, o) << " at " << i;
    if (testing::Test::HasFailure()) break;
  }
  // The rows around the matrix, which are NaN, are untouched.
  EXPECT_EQ(x.m * x.n == 0 || (std::isnan(number(c, -1)) && std::isnan(number(c, c.numel()))), true);
  return bytes_of(c);
}

template <class F>
void for_each_option(F&& f) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (float beta : {0.0f, 1.0f}) f(ops::MatmulOptions{ta, tb, beta});
    }
  }
}

std::vector<Types> all_types() {
  std::vector<Types> types{
      {DType::F32, DType::F32}, {DType::F64, DType::F64}, {DType::F16, DType::F32}, {DType::F16, DType::F16}};
  for (Bf16Path path : {Bf16Path::Widen, Bf16Path::OneDnn, Bf16Path::Amx}) {
    if (!kernel::can_take(path)) continue;
    types.push_back({DType::BF16, DType::F32, path});
    types.push_back({DType::BF16, DType::BF16, path});
  }
  return types;
}

TEST(Matmul, AgreesWithDoublePrecision) {
  for (const Types& t : all_types()) {
    for (const Case& x : kCases) {
      for_each_option([&](const ops::MatmulOptions& o) { product(2, t, x, o, true); });
      if (HasFailure()) return;
    }
  }
}

TEST(Matmul, HasTheSameBitsForAnyNumberOfThreads) {
  const std::vector<Case> cases{{130, 77, 1111}, {384, 256, 4096}, {64, 64, 4096},
                                {1, 1000, 768},  {520, 390, 40},   {257, 1030, 515}};
  for (const Types& t : all_types()) {
    if (t.in == DType::F64) continue;
    for (const Case& x : cases) {
      for_each_option([&](const ops::MatmulOptions& o) {
        const auto one = product(1, t, x, o, false);
        for (int threads : {2, 3, 4}) EXPECT_TRUE(one == product(threads, t, x, o, false)) << describe(t, x, o);
      });
    }
  }
}

TEST(Matmul, TakesTheFastestPathOfTheCpu) {
  CpuDevice device;
  EXPECT_EQ(device.gemm_cache().bf16_path, kernel::best_bf16_path());
  EXPECT_TRUE(kernel::can_take(Bf16Path::Widen));
}

TEST(Matmul, RefusesADeviceWithoutThreads) {
  EXPECT_THROW(CpuDevice({.threads = 0}), Error);
}

}  // namespace
}  // namespace mcpp
