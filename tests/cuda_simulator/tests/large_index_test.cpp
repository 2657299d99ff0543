// Kernels over tensors of more than 2^31 elements. Only the first and the last blocks of every launch run, so the last
// elements are computed, but only few pages of the address space need memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensor/cuda/gemm/block_codes.h"
#include "tensor/cuda/gemm/fp8_codes.h"
#include "tensor/cuda_device.h"
#include "tensor/ops/kernels.h"
#include "tensor/ops/low_precision/fp8.h"
#include "tensor/ops/low_precision/pack.h"
#include "tensor/ops/low_precision/param_remainders.h"
#include "tensor/ops/low_precision/quantize.h"
#include "tensor/ops/low_precision/stochastic_round.h"
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::test {
namespace {

using cuda_simulator::settings;
using Cuda = Kernels<DeviceType::Cuda>;

/// Grids are limited to 8448 blocks of 256 threads on 132 multiprocessors. The numbers of elements are multiples of the
/// elements that all threads process at a time, so that the last block processes the last one.
constexpr i64 kLimit = i64{1} << 31, kWidth = 8192, kRows = i64{8448} * 256 * 8 * 125 / kWidth, kCount = kRows * kWidth;
static_assert(kCount > kLimit && kCount % (i64{8448} * 256 * 8) == 0);

/// Simulated GPU with many multiprocessors and memory, on which two blocks of each launch run.
class LargeIndexTest : public testing::Test {
 protected:
  LargeIndexTest() : saved_(settings()) {
    settings().memory = std::size_t{47} << 30;
    settings().multiprocessors = 132;
    settings().blocks = 2;
    cuda_simulator::reset_faults();
    cudaGetLastError();  // clears errors of earlier tests
    cuda_simulator::set_report_handler([this](const std::string& text) { reports_.push_back(text); });
    device_ = make_cuda_device({});
  }
  ~LargeIndexTest() override {
    device_.reset();
    cudaDeviceSynchronize();  // frees its memory
    cuda_simulator::set_report_handler(nullptr);
    settings() = saved_;
  }
  void TearDown() override {
    synchronize(*device_);
    EXPECT_THAT(reports_, testing::IsEmpty());
  }

  Tensor empty(Shape shape, DType dtype = DType::BF16) { return Tensor::empty(std::move(shape), dtype, *device_); }
  Tensor filled(Shape shape, float value, DType dtype) {
    Tensor t = empty(std::move(shape), dtype);
    for (i64 i = 0; i < t.numel(); ++i) set(t, i, value);
    return t;
  }
  /// Element `i` of a tensor, written or read by the host without a copy. Negative numbers count from the end.
  static void set(const Tensor& t, i64 i, float value) {
    i = i < 0 ? t.numel() + i : i;
    if (t.dtype() == DType::I32) {
      t.data<i32>()[i] = static_cast<i32>(value);
      return;
    }
    on_float(t.dtype(), [&]<class T>() { t.data<T>()[i] = T(value); });
  }
  double get(const Tensor& t, i64 i = -1) {
    synchronize(*device_);
    double value = 0;
    const i64 at = i < 0 ? t.numel() + i : i;
    on_float(t.dtype(), [&]<class T>() { value = static_cast<double>(AccumulateType<T>(t.data<T>()[at])); });
    return value;
  }

  std::unique_ptr<Device> device_;

 private:
  const cuda_simulator::Settings saved_;
  std::vector<std::string> reports_;
};

TEST_F(LargeIndexTest, ElementwiseKernelsReachLastElement) {
  Tensor x = empty({kRows, kWidth}), y = empty({kRows, kWidth}), h = empty({kRows, kWidth}, DType::F16);
  set(x, -1, 3);
  set(y, -1, 4);
  Cuda::scale(x, 2);
  Cuda::add_to(x, y);
  EXPECT_EQ(get(y), 10);
  Cuda::copy(y, h);
  EXPECT_EQ(get(h), 10);
  Tensor sum = filled({1}, 0, DType::F64);
  Cuda::add_sum_of_squares(y, sum);
  const Tensor bias = filled({kWidth}, 5, DType::BF16);
  Cuda::add_bias(y, bias);
  EXPECT_EQ(get(y), 15);
  Tensor sums = filled({kWidth}, 0, DType::F32);
  Cuda::column_sum(y, sums, 1);
}

TEST_F(LargeIndexTest, CrossEntropyReachesLastLogit) {
  constexpr i64 kTokens = 16384, kVocabulary = 151936;
  static_assert(kTokens * kVocabulary > kLimit);
  Tensor logits = empty({kTokens, kVocabulary}), targets = empty({kTokens}, DType::I32);
  set(targets, 0, -1);
  set(targets, -1, kVocabulary - 1);
  set(logits, -1, 4);
  Tensor largest = empty({kTokens}, DType::F32), sum = empty({kTokens}, DType::F32),
         target = empty({kTokens}, DType::F32);
  Cuda::cross_entropy_stats(logits, targets, 0, kVocabulary, largest, sum, target);
  EXPECT_EQ(get(target), 4);
  EXPECT_EQ(get(largest), 4);
  set(largest, -1, 4);  // as log-sum-exp
  set(largest, 0, 0);
  Cuda::cross_entropy_gradient(logits, targets, 0, kVocabulary, largest, 1, 0, {});
  EXPECT_NEAR(get(logits, -2), std::exp(-4), 1e-3);
  EXPECT_NEAR(get(logits), 0, 1e-3) << "probability 1 minus 1";
}

TEST_F(LargeIndexTest, NormsReachLastRow) {
  Tensor x = empty({kRows, kWidth}), y = empty({kRows, kWidth});
  const Tensor w = filled({kWidth}, 1, DType::BF16), b = filled({kWidth}, 2, DType::BF16);
  Tensor mean = empty({kRows}, DType::F32), rstd = empty({kRows}, DType::F32);
  for (i64 i = 1; i <= kWidth; ++i) set(x, -i, i % 2 == 0 ? 1 : -1);
  Cuda::rms_norm(x, w, NormRule(0), y, rstd);
  EXPECT_EQ(get(y), -1);
  Cuda::layer_norm(x, w, b, NormRule(0), y, mean, rstd);
  EXPECT_EQ(get(y), 1);
  Tensor dw = filled({kWidth}, 0, DType::F32), db = filled({kWidth}, 0, DType::F32);
  for (i64 i = 0; i < kRows; ++i) set(mean, i, 0), set(rstd, i, 1);
  set(x, -1, 7);
  NormGradients gradients{.dx = empty({kRows, kWidth}), .dw = dw, .db = db};
  Cuda::layer_norm_backward(y, {.x = x, .w = w, .mean = mean, .rstd = rstd}, gradients);
  EXPECT_NE(get(gradients.dx), 0);
}

TEST_F(LargeIndexTest, ActivationsReachLastRow) {
  Tensor x = empty({kRows, 2 * kWidth}), y = empty({kRows, kWidth}), dx = empty({kRows, 2 * kWidth});
  set(x, -1, 3);
  set(x, -1 - kWidth, 100);
  Cuda::activation(Activation::SwiGlu, x, nullptr, y);
  EXPECT_EQ(get(y), 300);
  set(y, -1, 1);
  Cuda::activation_backward(Activation::SwiGlu, y, x, nullptr, dx);
  EXPECT_EQ(get(dx), 100);
}

TEST_F(LargeIndexTest, DropoutReachesLastRow) {
  Tensor x = empty({kRows, kWidth}), y = empty({kRows, kWidth});
  set(x, -1, 3);
  set(y, -1, 4);
  Cuda::bias_dropout_add(x, nullptr, y, {.p = 0.001F, .key = 1, .samples = {0, 1}}, y);
  EXPECT_NEAR(get(y), 7, 0.1);
}

TEST_F(LargeIndexTest, HeadsReachLastRow) {
  constexpr i64 kHeads = 64, kHeadDim = kWidth / kHeads;
  Tensor x = empty({kRows, 1, kWidth}), y = empty({kRows, 1, kWidth});
  set(x, -1, 3);
  Tensor cos = empty({kRows, kHeadDim / 2}, DType::F32), sin = empty({kRows, kHeadDim / 2}, DType::F32);
  set(cos, -1, -1);
  Heads heads = dense_heads(x, kHeads), to = dense_heads(y, kHeads);
  Cuda::rope(heads, cos, sin, {}, false);
  EXPECT_EQ(get(x), -3);
  Cuda::copy_heads(heads, to);
  EXPECT_EQ(get(y), -3);
}

TEST_F(LargeIndexTest, EmbeddingReadsAndAddsToLastRowOfTable) {
  constexpr i64 kTokens = 64;
  Tensor table = empty({kRows, kWidth}), dtable = empty({kRows, kWidth}, DType::F32);
  Tensor tokens = empty({kTokens}, DType::I32), y = empty({kTokens, kWidth});
  for (i64 i = 0; i < kTokens; ++i) set(tokens, i, i == kTokens - 1 ? kRows - 1 : 0);
  set(table, -1, 3);
  Cuda::embedding(tokens, table, 0, y);
  EXPECT_EQ(get(y), 3);
  settings().blocks = 0;
  for (i64 i = 0; i < y.numel(); ++i) set(y, i, 0);
  set(y, -1, 5);
  Cuda::embedding_backward(y, tokens, 0, dtable, 1);
  EXPECT_EQ(get(dtable), 5);
}

TEST_F(LargeIndexTest, AttentionReachesLastQueryOfManyHeads) {
  constexpr i64 kSeq = 32768, kHeads = 1040, kHeadDim = 64;
  static_assert(kSeq * kHeads * kHeadDim > kLimit);
  const Tensor q = empty({kSeq, 1, kHeads * kHeadDim}), k = filled({kSeq, 1, kHeadDim}, 0, DType::BF16),
               v = filled({kSeq, 1, kHeadDim}, 0, DType::BF16);
  set(v, -1, 3);
  AttentionResult y{.out = empty({kSeq, 1, kHeads * kHeadDim}), .lse = empty({1, kHeads, kSeq}, DType::F32)};
  settings().has_cudnn = false;
  Cuda::attention({dense_heads(q, kHeads), dense_heads(k, 1), dense_heads(v, 1)},
                  {.soft_cap = 10, .queries = {}, .keys = {}, .window = 3, .dropout = {}}, y);
  EXPECT_EQ(get(y.out), 1) << "the mean over the last three keys";
}

TEST_F(LargeIndexTest, OptimizerReachesLastWeight) {
  Tensor w = empty({kCount}, DType::F32), m = empty({kCount}, DType::F32), v = empty({kCount}, DType::F32),
         g = empty({kCount}, DType::F32), model = empty({kCount});
  set(g, -1, 1);
  Cuda::adamw(w, m, v, g, {.lr = 0.5}, &model);
  EXPECT_NEAR(get(model), -0.5, 1e-6);
}

TEST_F(LargeIndexTest, LowPrecisionStatesReachLastValue) {
  Tensor x = empty({kCount}, DType::F32), y = empty({kCount}, DType::F32), model = empty({kCount});
  set(x, -1, 3);
  Quantized codes{.codes = empty({kCount / 4}, DType::I32), .scales = empty({kCount / kQuantizedBlock}, DType::F32)};
  QuantizeKernels<DeviceType::Cuda>::quantize(x, codes);
  QuantizeKernels<DeviceType::Cuda>::dequantize(codes, y);
  EXPECT_EQ(get(y), 3);
  set(x, -1, 1.001F);
  set(model, -1, 1.001F);
  ParamRemainders rest{.low = empty({kCount / 2}, DType::I32), .rounded_up = empty({kCount / 32}, DType::I32)};
  ParamRemainderKernels<DeviceType::Cuda>::param_remainders(x, rest);
  ParamRemainderKernels<DeviceType::Cuda>::join_param_remainders(model, rest, y);
  EXPECT_EQ(get(y), 1.001F);
  set(model, -1, 0);
  StochasticRoundKernels<DeviceType::Cuda>::stochastic_round(
      x, {.key = 1, .global = {kCount}, .offset = {0}, .shape = {kCount}}, model);
  EXPECT_NEAR(get(model), 1.001, 0x1p-7);
}

TEST_F(LargeIndexTest, PackedMessagesReachLastValue) {
  Tensor x = empty({kCount}), message = empty({packed_words(kCount)}, DType::I32), sum = empty({kCount}, DType::F32);
  set(x, -1, 127);
  PackKernels<DeviceType::Cuda>::pack(x, message);
  PackKernels<DeviceType::Cuda>::unpack(message, x);
  EXPECT_EQ(get(x), 127);
  PackKernels<DeviceType::Cuda>::sum_unpacked(message, sum);
  EXPECT_EQ(get(sum), 127);
}

TEST_F(LargeIndexTest, ExpertRowsReachLastSlot) {
  constexpr i64 kTokens = 64, kTopk = 2;
  Tensor x = empty({kRows, kWidth}), slots = empty({kTokens, kTopk}, DType::I32), y = empty({kTokens, kWidth});
  Tensor weights = filled({kTokens, kTopk}, 2, DType::F32), d_weights = empty({kTokens, kTopk}, DType::F32);
  for (i64 i = 0; i < slots.numel(); ++i) set(slots, i, -1);
  set(slots, -1, kRows - 1);
  set(x, -1, 3);
  Cuda::combine_rows(x, slots, &weights, y);
  EXPECT_EQ(get(y), 6);
  for (i64 i = 1; i < kWidth; ++i) set(y, y.numel() - 1 - i, 0);
  Cuda::combine_rows_backward(y, x, slots, weights, x, d_weights);
  EXPECT_EQ(get(x), 12);
  EXPECT_EQ(get(d_weights), 18);
}

/// More rows than 65535 blocks along y would cover.
TEST_F(LargeIndexTest, TransposedFp8CodesReachLastOfManyRows) {
  constexpr i64 kTokens = kCount / 512, kColumns = 512;
  static_assert(kTokens > i64{65535} * 64);
  const Tensor x = empty({kTokens, kColumns}), codes = empty({kTokens * kColumns / 4}, DType::I32),
               amax = filled({1}, 448, DType::F32), unscale = empty({1}, DType::F32);
  set(x, -1, 448);
  for (const bool transposed : {false, true}) {
    auto* const to = static_cast<u8*>(codes.raw());
    to[codes.bytes() - 1] = 0;
    write_fp8_codes(x, {.format = Fp8Format::E4M3, .amax = amax}, transposed, {to, unscale.data<float>()});
    synchronize(*device_);
    EXPECT_EQ(to[codes.bytes() - 1], 0x7E) << "transposed: " << transposed;
  }
}

TEST_F(LargeIndexTest, BlockCodesReachLastOfManyRows) {
  constexpr i64 kTokens = kCount / 512, kColumns = 512;
  const Tensor x = empty({kTokens, kColumns});
  for (i64 i = 0; i < 32; ++i) set(x, -1 - i, 448), set(x, -1 - i * kColumns, 448);
  for (const bool transposed : {false, true}) {
    const Fp8Scale scale{.block = transposed ? BlockShape{32, 1} : BlockShape{1, 32}};
    const BlockCodes codes(x, scale, transposed);
    const EncodedShape& shape = codes.shape();
    synchronize(*device_);
    const auto* last = static_cast<const u8*>(codes.codes()) + shape.rows * shape.code_bytes_of_row() - 1;
    EXPECT_EQ(*last, 0x7E) << "transposed: " << transposed;
    const auto* scales = static_cast<const u8*>(codes.scales());
    EXPECT_EQ(scales[shape.scale_index(shape.rows - 1, shape.blocks() - 1)], 127) << "a scale of 1";
  }
}

}  // namespace
}  // namespace mcpp::test
