#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "tensor/cpu/gemm/gemm.h"
#include "tensor/ops/ops.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp::test {
namespace {

using kernel::Bf16Path;
using kernel::kFewRows;

struct Case {
  i64 m, n, k;
};

// Odd sizes, tails of every tile and block, long sums, single rows and columns, empty sums.
const std::vector<Case> kCases{{1, 1, 1},     {3, 5, 7},       {16, 16, 32},   {33, 31, 65},   {64, 64, 64},
                               {77, 130, 50}, {130, 77, 1111}, {257, 129, 96}, {31, 1000, 33}, {1, 515, 129},
                               {3, 70, 200},  {1, 64, 1024},   {5, 1, 300},    {2, 3, 2500},   {600, 400, 1},
                               {4, 6, 0},     {0, 4, 3},       {4, 0, 3},      {520, 390, 40}, {64, 96, 2080},
                               {1, 97, 64},   {9, 1001, 131},  {31, 400, 333}};

/// Returns at least `count` values of a seed, uniform in [-2, 2), as bytes. Each sequence is drawn once.
const std::vector<std::byte>& uniform(i64 count, DType type, unsigned seed) {
  static std::map<std::pair<DType, unsigned>, std::vector<std::byte>> drawn;
  std::vector<std::byte>& bytes = drawn[{type, seed}];
  if (static_cast<i64>(bytes.size()) >= count * size_of(type)) return bytes;
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> next(-2, 2);
  on_float(type, [&]<class T>() {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& v : values) v = from_double<T>(next(random));
    const auto of_values = std::as_bytes(std::span(values));
    bytes.assign(of_values.begin(), of_values.end());
  });
  return bytes;
}

/// Matrix inside a larger buffer with a row of NaN on both sides, which must not affect results.
struct Matrix {
  Matrix(i64 rows, i64 columns, DType type, Device& device, unsigned seed) {
    padded = garbage({rows + 2, columns}, type, device, 0);
    inner = padded.slice(1, rows + 1);
    const std::vector<std::byte>& bytes = uniform(rows * columns, type, seed);
    write_bytes(bytes.data(), inner);
  }
  /// Returns true if the rows of NaN are unchanged.
  bool is_padding_intact() const {
    const Numbers before = to_doubles(padded.slice(0, 1)),
                  after = to_doubles(padded.slice(padded.dim(0) - 1, padded.dim(0)));
    const auto is_nan = [](double x) { return std::isnan(x); };
    return std::ranges::all_of(before, is_nan) && std::ranges::all_of(after, is_nan);
  }
  Tensor padded, inner;
};

// Exact product of the rounded inputs in fp64, and the sum of magnitudes that bounds its rounding error.
struct Truth {
  Numbers value, magnitude;
};

/// Returns the transpose of a matrix with this many rows.
Numbers transposed(const Numbers& x, i64 rows) {
  Numbers result;
  const std::size_t columns = rows == 0 ? 0 : x.size() / static_cast<std::size_t>(rows);
  for (std::size_t j = 0; j < columns; ++j) {
    for (std::size_t i = j; i < x.size(); i += columns) result.push_back(x[i]);
  }
  return result;
}

Truth truth(const Tensor& a, const Tensor& b, const Tensor& c, const ops::MatmulOptions& o) {
  const i64 m = c.dim(0), n = c.dim(1), k = a.dim(o.transpose_a ? 0 : 1);
  const Numbers x = o.transpose_a ? transposed(to_doubles(a), k) : to_doubles(a);
  const Numbers y = o.transpose_b ? transposed(to_doubles(b), n) : to_doubles(b);
  Truth t{o.beta == 0 ? Numbers(static_cast<std::size_t>(m * n)) : to_doubles(c), {}};
  for (const double v : t.value) t.magnitude.push_back(std::abs(v));
  for (i64 i = 0; i < m; ++i) {
    double *sums = t.value.data() + i * n, *magnitudes = t.magnitude.data() + i * n;
    for (i64 l = 0; l < k; ++l) {
      const double factor = x[static_cast<std::size_t>(i * k + l)], *row = y.data() + l * n;
      for (i64 j = 0; j < n; ++j) sums[j] += factor * row[j];
      for (i64 j = 0; j < n; ++j) magnitudes[j] += std::abs(factor * row[j]);
    }
  }
  return t;
}

/// Element types and the device that multiplies them.
struct Types {
  DType in, out;
  DeviceType device_type = DeviceType::Cpu;

  std::string name() const {
    return str(name_of(in), "_", name_of(out), device_type == DeviceType::Cuda ? "_cuda" : "_cpu");
  }
  friend void PrintTo(const Types& types, std::ostream* out) { *out << types.name(); }
};

// Errors of a sum of K rounded terms grow like sqrt(K) times the unit of its type, relative to the sum of magnitudes;
// the factor 4 allows for unlucky signs. Rounding to bf16 once adds half a unit of the result; to fp16, at least half
// of its smallest value.
double tolerance(const Types& t, i64 k, double value, double magnitude) {
  const double unit = t.in == DType::F64 ? 1.2e-16 : 6e-8;
  const double sum = 4 * unit * std::sqrt(static_cast<double>(k + 1)) * magnitude;
  if (t.out == DType::F16) return sum + std::abs(value) / 2048 * 1.001 + 0x1p-25;
  return t.out == DType::BF16 ? sum + std::abs(value) / 256 * 1.001 + 1e-37 : sum;
}

std::string describe(const Case& x, const ops::MatmulOptions& o) {
  return str("[", x.m, ", ", x.n, ", ", x.k, "]", o.transpose_a ? " a^T" : "", o.transpose_b ? " b^T" : "", " beta ",
             o.beta);
}

std::vector<std::byte> product(Device& device, const Types& t, const Case& x, const ops::MatmulOptions& o,
                               bool check_values) {
  const Matrix a(o.transpose_a ? x.k : x.m, o.transpose_a ? x.m : x.k, t.in, device, 1);
  const Matrix b(o.transpose_b ? x.n : x.k, o.transpose_b ? x.k : x.n, t.in, device, 2);
  Matrix c(x.m, x.n, t.out, device, 3);
  if (o.beta == 0) set_values(c.inner, Numbers(static_cast<std::size_t>(x.m * x.n), std::nan("")));
  Truth expected;
  if (check_values) expected = truth(a.inner, b.inner, c.inner, o);
  ops::matmul(a.inner, b.inner, c.inner, o);
  const Numbers got = check_values ? to_doubles(c.inner) : Numbers{};
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::abs(got[i] - expected.value[i]), tolerance(t, x.k, expected.value[i], expected.magnitude[i]))
        << describe(x, o) << " at " << i;
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_TRUE(c.is_padding_intact()) << describe(x, o);
  return bytes_of(c.inner);
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
  std::vector<Types> types;
  for (const auto& [in, out] :
       {std::pair(DType::F32, DType::F32), std::pair(DType::F64, DType::F64), std::pair(DType::BF16, DType::F32),
        std::pair(DType::BF16, DType::BF16), std::pair(DType::F16, DType::F32), std::pair(DType::F16, DType::F16)}) {
    for (const DeviceType device_type : device_types()) types.push_back({in, out, device_type});
  }
  return types;
}

class MatmulTest : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    if (const std::string why = why_missing(GetParam().device_type); !why.empty()) GTEST_SKIP() << why;
    if (is_on_gpu()) gpu_ = make_gpu();
  }
  static bool is_on_gpu() { return GetParam().device_type == DeviceType::Cuda; }
  /// Calls f() for each path on which the CPU can multiply the types, and which the device() of f then uses.
  template <class F>
  void for_each_path(F&& f) {
    if (is_on_gpu()) return f();
    for (const Bf16Path path : {Bf16Path::Widen, Bf16Path::Dots, Bf16Path::Amx}) {
      if (path != Bf16Path::Widen && (GetParam().in != DType::BF16 || !kernel::can_use(path))) continue;
      for (const bool sgemm : {false, true}) {
        if (sgemm && (path != Bf16Path::Widen || GetParam().in == DType::F64 || !kernel::can_use_sgemm())) continue;
        SCOPED_TRACE(str("path ", static_cast<int>(path), sgemm ? ", sgemm" : ""));
        path_ = path;
        sgemm_ = sgemm;
        f();
        if (HasFailure()) return;
      }
    }
  }
  /// Returns the GPU, or a new CPU device with this many threads.
  Device& device(int threads) {
    if (is_on_gpu()) return *gpu_;
    cpu_ = std::make_unique<CpuDevice>(CpuOptions{.threads = threads});
    cpu_->gemm_cache().bf16_path = path_;
    cpu_->gemm_cache().sgemm = sgemm_;
    return *cpu_;
  }

 private:
  std::unique_ptr<Device> gpu_;
  std::unique_ptr<CpuDevice> cpu_;
  Bf16Path path_ = Bf16Path::Widen;
  bool sgemm_ = false;
};

INSTANTIATE_TEST_SUITE_P(Types, MatmulTest, testing::ValuesIn(all_types()),
                         [](const auto& p) { return p.param.name(); });

TEST_P(MatmulTest, MatchesDoublePrecision) {
  for_each_path([&] {
    for (const Case& x : kCases) {
      for_each_option([&](const ops::MatmulOptions& o) { product(device(2), GetParam(), x, o, true); });
      if (HasFailure()) return;
    }
  });
}

/// Excludes fp64 on the CPU, which is slow and computes each value in one thread.
std::vector<Types> fast_types() {
  std::vector<Types> types = all_types();
  std::erase_if(types, [](const Types& t) { return t.in == DType::F64 && t.device_type == DeviceType::Cpu; });
  return types;
}

class FastMatmulTest : public MatmulTest {};
INSTANTIATE_TEST_SUITE_P(Types, FastMatmulTest, testing::ValuesIn(fast_types()),
                         [](const auto& p) { return p.param.name(); });

TEST_P(FastMatmulTest, IsBitwiseIdenticalForAnyThreadCount) {
  const std::vector<Case> cases{{130, 77, 1111}, {384, 256, 4096}, {64, 64, 4096},
                                {1, 1000, 768},  {520, 390, 40},   {257, 1030, 515}};
  for_each_path([&] {
    for (const Case& x : cases) {
      for_each_option([&](const ops::MatmulOptions& o) {
        const auto one = product(device(1), GetParam(), x, o, false);
        for (int threads : {2, 3, 4})
          EXPECT_TRUE(one == product(device(threads), GetParam(), x, o, false)) << describe(x, o);
      });
    }
  });
}

/// Without sgemm, the sums of a row have a fixed order: they must not depend on the other rows or their number.
TEST(MatmulRowTest, IsIndependentOfOtherRows) {
  for (const Types& t : fast_types()) {
    if (t.device_type != DeviceType::Cpu) continue;
    CpuDevice device({.threads = 2});
    device.gemm_cache().bf16_path = Bf16Path::Widen;
    device.gemm_cache().sgemm = false;
    constexpr i64 kRows = 300, kInner = 700, kColumns = 131;
    const Matrix a(kRows, kInner, t.in, device, 1), b(kColumns, kInner, t.in, device, 2);
    const auto rows = [&](i64 begin, i64 end) {
      Tensor c = Tensor::empty({end - begin, kColumns}, t.out, device);
      ops::matmul(a.inner.slice(begin, end), b.inner, c, {.transpose_b = true});
      return bytes_of(c);
    };
    const std::vector<std::byte> all = rows(0, kRows);
    for (const auto& [begin, end] : {std::pair<i64, i64>(0, kFewRows + 1), {7, 20}, {100, 229}, {1, kRows}}) {
      const std::vector<std::byte> part = rows(begin, end);
      const auto row = static_cast<i64>(all.size()) / kRows;
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin * row))
          << t.name() << " rows " << begin << " to " << end;
    }
  }
}

/// Decoding a batch of texts gives each text the result of decoding it alone.
TEST(MatmulRowTest, IsIndependentOfNumberOfFewRowsOfLargeMatrix) {
  for (const Types& t : fast_types()) {
    if (t.device_type != DeviceType::Cpu) continue;
    CpuDevice device({.threads = 2});
    device.gemm_cache().bf16_path = Bf16Path::Widen;
    device.gemm_cache().sgemm = false;
    constexpr i64 kRows = kernel::kFewRowsOfLargeMatrix, kInner = 701, kColumns = 750;
    static_assert(kInner * kColumns >= kernel::kLargeMatrix);
    const Matrix a(kRows, kInner, t.in, device, 1), b(kColumns, kInner, t.in, device, 2);
    const auto rows = [&](i64 begin, i64 end) {
      Tensor c = Tensor::empty({end - begin, kColumns}, t.out, device);
      ops::matmul(a.inner.slice(begin, end), b.inner, c, {.transpose_b = true});
      return bytes_of(c);
    };
    const std::vector<std::byte> all = rows(0, kRows);
    for (const auto& [begin, end] : {std::pair<i64, i64>(0, 1), {3, 5}, {4, 7}, {7, 11}, {1, 18}, {5, kRows}}) {
      const std::vector<std::byte> part = rows(begin, end);
      const auto row = static_cast<i64>(all.size()) / kRows;
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin * row))
          << t.name() << " rows " << begin << " to " << end;
    }
  }
}

TEST(MatmulPathTest, UsesFastestPathOfCpu) {
  CpuDevice device;
  EXPECT_EQ(device.gemm_cache().choose_bf16_path(), kernel::best_bf16_path());
  EXPECT_TRUE(kernel::can_use(Bf16Path::Widen));
}

TEST(MatmulDeviceTest, RejectsDeviceWithoutThreads) {
  EXPECT_THROW(CpuDevice({.threads = 0}), Error);
}

}  // namespace
}  // namespace mcpp::test
