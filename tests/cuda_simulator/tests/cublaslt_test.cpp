// Low-precision GEMMs of the simulated cuBLASLt: positions of scales as in the library's documentation, and the
// combinations that each compute capability supports.
#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/cuda_simulator/matrix_scales.h"

namespace mcpp::test {
namespace {

using cuda_simulator::MatrixScales;
using cuda_simulator::settings;
using testing::HasSubstr;

constexpr cublasLtMatmulMatrixScale_t kScalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
                                      kVector16 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3,
                                      kVector32 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
                                      kVector128 = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                                      kSquare128 = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;

/// The documentation's translation of an offset in a tile into the indices of a scale.
TEST(MatrixScalesTest, TilesFollowDocumentation) {
  constexpr std::int64_t kOuter = 300, kBlocks = 9, kBlocksInFours = 12, kTileRows = 3;
  for (const auto& [mode, width] : {std::pair{kVector32, std::int64_t{32}}, {kVector16, std::int64_t{16}}}) {
    std::vector<unsigned char> codes(kTileRows * 128 * kBlocksInFours, 0);
    const MatrixScales scales(codes.data(), mode, kOuter, kBlocks * width);
    for (std::int64_t at = 0; at < std::ssize(codes); ++at) {
      const std::int64_t tile = at / 512, offset = at % 512;
      const std::int64_t outer = tile / (kBlocksInFours / 4) * 128 + (offset % 16) / 4 * 32 + offset / 16,
                         block = tile % (kBlocksInFours / 4) * 4 + offset % 4;
      if (outer >= kOuter || block >= kBlocks) continue;
      codes[static_cast<std::size_t>(at)] = mode == kVector32 ? 130 : 0x50;  // 8 in E8M0 and in E4M3
      EXPECT_EQ(scales.at(outer, block * width), 8) << at;
      EXPECT_EQ(scales.at(outer, block * width + width - 1), 8) << at;
      codes[static_cast<std::size_t>(at)] = 0;
      EXPECT_NE(scales.at(outer, block * width), 8) << at;
    }
  }
}

TEST(MatrixScalesTest, BlocksOf128FollowDocumentation) {
  constexpr std::int64_t kOuter = 260, kInner = 600;  // 3 x 5 squares
  std::vector<float> scales(kOuter * 5);
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<float>(i);
  const MatrixScales vectors(scales.data(), kVector128, kOuter, kInner);
  EXPECT_EQ(vectors.at(7, 130), kOuter + 7) << "contiguous along M";
  const MatrixScales squares(scales.data(), kSquare128, kOuter, kInner);
  EXPECT_EQ(squares.at(7, 130), 1) << "contiguous along K";
  EXPECT_EQ(squares.at(130, 599), 8 + 4) << "rows of 5 scales take 8";
  const MatrixScales scalar(scales.data() + 3, kScalar, kOuter, kInner);
  EXPECT_EQ(scalar.at(130, 599), 3);
}

class CublasLtLowPrecisionTest : public testing::Test {
 protected:
  CublasLtLowPrecisionTest() : saved_(settings()) {
    cuda_simulator::set_report_handler([this](const std::string& text) { report_ = text; });
  }
  ~CublasLtLowPrecisionTest() override {
    cuda_simulator::set_report_handler(nullptr);
    settings() = saved_;
  }

  struct Gemm {
    cudaDataType_t type = CUDA_R_8F_E4M3;
    int a_mode = kScalar, b_mode = kScalar;
    std::uint64_t m = 64, k = 64;
    cublasOperation_t transpose_a = CUBLAS_OP_T;
    cudaDataType_t out = CUDA_R_16BF;
  };
  /// Returns the report of the heuristics on this compute capability, "" if they propose an algorithm.
  std::string refusal(int compute_capability, const Gemm& gemm) {
    settings().compute_capability = compute_capability;
    report_.clear();
    cublasLtMatmulDescOpaque_t operation{};
    cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, std::int32_t value) {
      cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, gemm.transpose_a);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, gemm.a_mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, gemm.b_mode);
    cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
    const bool is_transposed = gemm.transpose_a == CUBLAS_OP_T;
    const std::uint64_t rows = is_transposed ? gemm.k : gemm.m;
    cublasLtMatrixLayoutInit(&a, gemm.type, rows, is_transposed ? gemm.m : gemm.k, static_cast<std::int64_t>(rows));
    cublasLtMatrixLayoutInit(&b, gemm.type, gemm.k, 64, static_cast<std::int64_t>(gemm.k));
    cublasLtMatrixLayoutInit(&c, gemm.out, gemm.m, 64, static_cast<std::int64_t>(gemm.m));
    cublasLtMatmulPreferenceOpaque_t preference{};
    cublasLtMatmulPreferenceInit(&preference);
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(nullptr, &operation, &a, &b, &c, &c, &preference, 1, &result, &count);
    EXPECT_EQ(status == CUBLAS_STATUS_SUCCESS && count == 1, report_.empty());
    return report_;
  }

 private:
  const cuda_simulator::Settings saved_;
  std::string report_;
};

TEST_F(CublasLtLowPrecisionTest, ModesNeedTheirComputeCapability) {
  const Gemm tensors, vectors{.a_mode = kVector128, .b_mode = kVector128},
      squares{.a_mode = kSquare128, .b_mode = kVector128}, mxfp8{.a_mode = kVector32, .b_mode = kVector32},
      nvfp4{.type = CUDA_R_4F_E2M1, .a_mode = kVector16, .b_mode = kVector16};
  EXPECT_EQ(refusal(90, tensors), "");
  EXPECT_EQ(refusal(100, tensors), "");
  for (const Gemm& hopper : {vectors, squares}) {
    EXPECT_EQ(refusal(90, hopper), "");
    EXPECT_THAT(refusal(100, hopper), HasSubstr("need compute capability 9.0"));
  }
  for (const Gemm& blackwell : {mxfp8, nvfp4}) {
    EXPECT_THAT(refusal(90, blackwell), HasSubstr("compute capability 10.0"));
    EXPECT_EQ(refusal(100, blackwell), "");
  }
}

TEST_F(CublasLtLowPrecisionTest, RejectsUndocumentedCombinations) {
  EXPECT_THAT(refusal(90, {.a_mode = kSquare128, .b_mode = kSquare128}), HasSubstr("128 x 128 elements for A and B"));
  EXPECT_THAT(refusal(100, {.a_mode = kVector32, .b_mode = kScalar}), HasSubstr("a combination of scale modes"));
  EXPECT_THAT(refusal(100, {.a_mode = kVector16, .b_mode = kVector16}), HasSubstr("fp4 needs scales of 16"));
  EXPECT_THAT(refusal(100, {.type = CUDA_R_4F_E2M1}), HasSubstr("fp4 needs scales of 16"));
  EXPECT_THAT(refusal(100, {.type = CUDA_R_4F_E2M1, .a_mode = kVector16, .b_mode = kVector16, .k = 48}),
              HasSubstr("columns of 16 bytes"));
  EXPECT_THAT(refusal(100, {.a_mode = kVector32, .b_mode = kVector32, .transpose_a = CUBLAS_OP_N}),
              HasSubstr("A transposed and B not"));
  EXPECT_THAT(refusal(100, {.a_mode = kVector32, .b_mode = kVector32, .m = 60}), HasSubstr("columns of 16 bytes"));
  EXPECT_THAT(refusal(90, {.type = CUDA_R_16BF, .a_mode = kVector128, .b_mode = kVector128}),
              HasSubstr("scales for these types"));
}

}  // namespace
}  // namespace mcpp::test
